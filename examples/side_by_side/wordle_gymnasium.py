"""Wordle with the letters a to e, in Gymnasium 1.4: the game alone, without a prompt, a model or records."""

from itertools import product

import gymnasium
from gymnasium.spaces import Text

WORDS = ["".join(letters) for letters in product("abcde", repeat=4)]
RULES = "Guess the word: 4 letters from a to e, 6 tries. G: right place, Y: wrong place. Answer with a word alone."


class Wordle(gymnasium.Env):
    action_space = Text(200)
    observation_space = Text(200)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word, self.turns = str(self.np_random.choice(WORDS)), 0
        return RULES, {}

    def step(self, guess):
        self.turns += 1
        marks = "".join("G" if a == b else "Y" if a in self.word else "-" for a, b in zip(guess, self.word))
        return marks, float(guess == self.word), guess == self.word, self.turns == 6, {}

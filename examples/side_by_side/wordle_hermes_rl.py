"""Wordle with the letters a to e, in hermes-rl."""

from itertools import product
from random import Random

from hermes_rl import TextGameEnv

WORDS = ["".join(letters) for letters in product("abcde", repeat=4)]
RULES = "Guess the word: 4 letters from a to e, 6 tries. G: right place, Y: wrong place. Answer with a word alone."


class Wordle:
    def reset(self, seed=None):
        self.word, self.turns = Random(seed).choice(WORDS), 0
        return RULES, {}

    def step(self, guess):
        self.turns += 1
        marks = "".join("G" if a == b else "Y" if a in self.word else "-" for a, b in zip(guess, self.word))
        return marks, float(guess == self.word), guess == self.word, self.turns == 6, {}


class WordleEnv(TextGameEnv):
    game = Wordle

"""Wordle with the letters a to e, in OpenEnv 0.10: the server, without the client and the agent."""

from itertools import product
from random import Random

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

WORDS = ["".join(letters) for letters in product("abcde", repeat=4)]
RULES = "Guess the word: 4 letters from a to e, 6 tries. G: right place, Y: wrong place. Answer with a word alone."


class Guess(Action):
    word: str


class Answer(Observation):
    message: str


class Wordle(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.word, self.turns = Random(seed).choice(WORDS), 0
        return Answer(message=RULES, reward=0.0)

    def step(self, action, timeout_s=None, **kwargs):
        self.turns += 1
        marks = "".join("G" if a == b else "Y" if a in self.word else "-" for a, b in zip(action.word, self.word))
        won = action.word == self.word
        return Answer(message=marks, reward=float(won), done=won or self.turns == 6)

    @property
    def state(self):
        return State(step_count=self.turns)


app = create_app(Wordle, Guess, Answer, max_concurrent_envs=64)

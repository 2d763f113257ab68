"""Wordle with the letters a to e, in verifiers 0.4."""

from itertools import product
from random import Random

import verifiers.v1 as vf

WORDS = ["".join(letters) for letters in product("abcde", repeat=4)]
RULES = "Guess the word: 4 letters from a to e, 6 tries. G: right place, Y: wrong place. Answer with a word alone."


class WordleData(vf.TaskData):
    word: str


class WordleTask(vf.Task[WordleData]):
    pass


class WordleTaskset(vf.Taskset[WordleTask]):
    def load(self):
        for seed in range(80):
            yield WordleTask(WordleData(prompt=RULES, word=Random(seed).choice(WORDS)), self.config.task)


class WordleEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class WordleEnv(vf.Env[WordleEnvConfig]):
    async def run(self, task, agents):
        word, won = task.data.word, False
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for turn in range(1, 7):
                guess = segment.last_reply.strip()
                won = not segment.terminated and guess == word
                if won or segment.terminated or turn == 6:
                    break
                marks = "".join("G" if a == b else "Y" if a in word else "-" for a, b in zip(guess, word))
                segment = await interaction.turn(marks)
        interaction.trace.record_reward("won", float(won))


__all__ = ["WordleEnv", "WordleTaskset"]

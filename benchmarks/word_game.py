"""A random model of 0.2 million parameters learns a small Wordle on a CPU: random guesses first, then GRPO.

Measures how often it finds the word of held-out games, before GRPO and at each checkpoint. Stop and start it as you
like: it resumes. It needs torch and TRL: run it with the Python of `scripts/interop_environment trainers`.

    $(scripts/interop_environment trainers)/bin/python benchmarks/word_game.py --out word_game
"""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.tiny_policy import Talk, Task, run  # noqa: E402
from hermes_rl import APIServerConfig, TextGameEnv  # noqa: E402
from hermes_rl.core.trajectory import Rollout  # noqa: E402
from hermes_rl.environment.text_game import TextGameConfig  # noqa: E402

LETTERS, LENGTH, TRIES = "abcd", 3, 5
WORDS = ["".join(letters) for letters in product(LETTERS, repeat=LENGTH)]
RULES = f"Guess {LENGTH} letters from {LETTERS}."


class WordGame:
    """G: right place, Y: wrong place, -: not in the word. Only the found word scores 1.

    A game that is lost scores half the share of right places in its last guess.
    """

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.word, self.turns = Random(seed).choice(WORDS), 0
        return RULES, {}

    def step(self, guess: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turns += 1
        won, last = guess == self.word, self.turns == TRIES
        if guess not in WORDS:
            return RULES, 0.0, False, last, {"won": False}
        marks = ["G" if a == b else "Y" if a in self.word else "-" for a, b in zip(guess, self.word, strict=True)]
        close = 0.5 * marks.count("G") / LENGTH
        shown = " ".join(a + mark for a, mark in zip(guess, marks, strict=True))
        return shown, 1.0 if won else close * last, won, last, {"won": won}


class WordGameEnv(TextGameEnv):
    """A word is found by its marks."""

    name = "word_game"
    game = WordGame

    @classmethod
    def config_init(cls) -> tuple[TextGameConfig, list[APIServerConfig]]:
        return TextGameConfig(max_token_length=8, group_size=8, batch_size=64, train_seeds=4096, eval_seeds=256), []


def random_game(random: Random) -> list[Talk]:
    """A game of random guesses."""
    game = WordGame()
    told, _ = game.reset(seed=random.randrange(4096))
    talk, over = [{"role": "user", "content": told}], False
    while not over:
        guess = random.choice(WORDS)
        told, _, terminated, truncated, _ = game.step(guess)
        over = terminated or truncated
        talk += [{"role": "assistant", "content": guess}, {"role": "user", "content": told}]
    return [talk[:-1]]


def measure(rollouts: Sequence[Rollout]) -> dict[str, float]:
    return {
        "wins": sum(rollout.states[-1].value["info"].get("won", False) for rollout in rollouts) / len(rollouts),
        "mean_score": sum(rollout.score or 0.0 for rollout in rollouts) / len(rollouts),
        "guesses": sum(rollout.turns_used for rollout in rollouts) / len(rollouts),
    }


if __name__ == "__main__":
    task = Task(WordGameEnv, WordGameEnv, random_game, [RULES, "user\n"], measure)
    run(task, __doc__, imitation_steps=200, steps=400, games=2)

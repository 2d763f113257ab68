"""Advantages: what each turn of a rollout is worth beside the other rollouts of its group.

Always true: what has nothing to be compared with, or nothing that differs, is worth exactly 0; no score, however large
or small, makes a NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from hermes_rl.training.settings import Baseline

# Means of equal scores differ from them by a few last digits, which a standard deviation would blow up to 1.
EQUAL = 1e-12


@dataclass(frozen=True, slots=True)
class ScoredTurns:
    """A scored rollout: how many turns the policy sampled in it, and what single ones of them scored, if anything."""

    score: float
    turns: int
    turn_scores: tuple[float, ...] = ()


def group_advantages(
    rollouts: Sequence[ScoredTurns], baseline: Baseline, *, per_turn: bool = False
) -> list[NDArray[np.float64]]:
    """For each rollout of a group its advantages, one a turn.

    Scores are compared, and all turns of a rollout have the same advantage. With `per_turn` it is what a rollout scores
    from a turn on that is compared, with the rollouts that got to the same turn.
    """
    if not per_turn:
        compared = against(np.array([rollout.score for rollout in rollouts]), baseline)
        return [np.full(rollout.turns, one) for rollout, one in zip(rollouts, compared, strict=True)]
    columns = zip_longest(*map(returns_to_go, rollouts))
    advantages = [np.zeros(rollout.turns) for rollout in rollouts]
    for turn, column in enumerate(columns):
        there = [index for index, value in enumerate(column) if value is not None]
        compared = against(np.array([column[index] for index in there]), baseline)
        for index, one in zip(there, compared, strict=True):
            advantages[index][turn] = one
    return advantages


def returns_to_go(rollout: ScoredTurns) -> NDArray[np.float64]:
    """By turn, the sum of the turn scores from it on; the score of the rollout in all turns where it has none.

    Turns after the last that was scored score 0.
    """
    if not rollout.turn_scores:
        return np.full(rollout.turns, rollout.score)
    scores = np.zeros(rollout.turns)
    scores[: len(rollout.turn_scores)] = rollout.turn_scores
    largest = np.finfo(np.float64).max
    with np.errstate(over="ignore"):
        return np.clip(np.cumsum(scores[::-1])[::-1], -largest, largest)


def against(values: NDArray[np.float64], baseline: Baseline) -> NDArray[np.float64]:
    """Values less their baseline; infinite where a difference is beyond float64."""
    count = len(values)
    # By a power of two, which keeps every digit: the sum of huge values would overflow.
    _, exponent = np.frexp(np.abs(values).max(initial=0.0))
    scaled = np.ldexp(values, -exponent)
    if count < 2 or np.ptp(scaled) <= EQUAL:
        return np.zeros(count)
    centred = scaled - scaled.mean()
    if baseline is Baseline.MEAN_STD:
        return np.asarray(centred / scaled.std())
    if baseline is Baseline.LEAVE_ONE_OUT:
        centred *= count / (count - 1)
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(centred, exponent))

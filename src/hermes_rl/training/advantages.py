"""Group-relative advantages, one per turn of a rollout.

Always true: the advantage is exactly 0 where there is nothing to compare with or all scores are equal; no finite score,
however large or small, gives NaN.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import ADVANTAGES

Scores: TypeAlias = NDArray[np.float64]
# The advantages of a group, from its scores.
Advantage: TypeAlias = Callable[[Scores], Scores]

# The mean of equal scores is off by rounding error, which dividing by the standard deviation would inflate to 1.
EQUAL_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class ScoredTurns:
    """A scored rollout: its number of sampled turns, and the turn scores if the environment gives them."""

    score: float
    turns: int
    turn_scores: tuple[float, ...] = ()


def group_advantages(
    rollouts: Sequence[ScoredTurns], advantage: Advantage, *, per_turn: bool = False
) -> list[NDArray[np.float64]]:
    """The advantages of each rollout in a group, one per turn.

    By default all turns of a rollout share the advantage of its score. With `per_turn` the return-to-go of each turn is
    compared across the rollouts that reached that turn.
    """
    if not per_turn:
        values = advantage(np.array([rollout.score for rollout in rollouts]))
        return [np.full(rollout.turns, value) for rollout, value in zip(rollouts, values, strict=True)]
    columns = zip_longest(*map(returns_to_go, rollouts))
    advantages = [np.zeros(rollout.turns) for rollout in rollouts]
    for turn, column in enumerate(columns):
        present = [index for index, value in enumerate(column) if value is not None]
        values = advantage(np.array([column[index] for index in present]))
        for index, value in zip(present, values, strict=True):
            advantages[index][turn] = value
    return advantages


def returns_to_go(rollout: ScoredTurns) -> NDArray[np.float64]:
    """Per turn, the sum of turn scores from that turn on; the rollout's score for all turns if it has no turn scores.

    Unscored trailing turns count as 0.
    """
    if not rollout.turn_scores:
        return np.full(rollout.turns, rollout.score)
    scores = np.zeros(rollout.turns)
    scores[: len(rollout.turn_scores)] = rollout.turn_scores
    largest = np.finfo(np.float64).max
    with np.errstate(over="ignore"):
        return np.clip(np.cumsum(scores[::-1])[::-1], -largest, largest)


def mean(values: Scores) -> Scores:
    """Minus the mean of the group; infinite where the difference overflows float64."""
    centred, exponent = _centred(values)
    return _unscaled(centred, exponent)


def mean_std(values: Scores) -> Scores:
    """The same, divided by the group's standard deviation."""
    centred, _ = _centred(values)
    return np.asarray(centred / centred.std()) if centred.any() else centred


def leave_one_out(values: Scores) -> Scores:
    """Minus the mean of the other rollouts of the group."""
    centred, exponent = _centred(values)
    return _unscaled(centred * (len(values) / max(len(values) - 1, 1)), exponent)


def get_advantage(name: str) -> Advantage:
    """A built-in advantage, an installed one, or `module:function`; ConfigError for anything else."""
    advantage: Advantage = ADVANTAGES.resolve(name)
    if not callable(advantage):
        raise ConfigError(f"{name} is not an advantage: it needs a function from scores to advantages")
    return advantage


def _centred(values: Scores) -> tuple[Scores, np.integer]:
    """Deviations from the mean, scaled by a power of two, which is exact; the sum of huge values would overflow."""
    _, exponent = np.frexp(np.abs(values).max(initial=0.0))
    scaled = np.ldexp(values, -exponent)
    if len(values) < 2 or np.ptp(scaled) <= EQUAL_TOLERANCE:
        return np.zeros(len(values)), exponent
    return scaled - scaled.mean(), exponent


def _unscaled(values: Scores, exponent: np.integer) -> Scores:
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp(values, exponent))

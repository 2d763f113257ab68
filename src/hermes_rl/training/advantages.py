"""Group-relative advantages, per rollout or per turn.

Always true: the advantage is exactly 0 where there is nothing to compare with or all scores are equal; finite scores,
however large or small, give finite advantages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import ADVANTAGES

Scores: TypeAlias = NDArray[np.float64]
# The advantages of a group, from its scores.
Advantage: TypeAlias = Callable[[Scores], Scores]

# The mean of equal scores is off by rounding error, which dividing by the standard deviation would inflate.
EQUAL_TOLERANCE = 1e-12
EPSILON = 1e-4
LARGEST = np.finfo(np.float64).max


@dataclass(frozen=True, slots=True)
class ScoredTurns:
    """The outcome score of a rollout, and its turn scores if the environment gives them."""

    score: float
    turn_scores: tuple[float, ...] = ()


def group_advantages(
    rollouts: Sequence[ScoredTurns], advantage: Advantage, *, per_turn: bool = False
) -> NDArray[np.float64]:
    """The advantages of a group: a row for each rollout and a column for each turn.

    The last column is that of all later turns. Without `per_turn` it is the only one, and compares the scores. With
    `per_turn`, column t compares the values of all rollouts from turn t on; a rollout that ended before has its outcome
    as value. So every turn has a baseline, and the others' values do not depend on what a rollout does from t on.
    """
    turns = max((len(rollout.turn_scores) for rollout in rollouts), default=0) if per_turn else 0
    values = np.array([values_to_go(rollout, turns) for rollout in rollouts]).reshape(-1, turns + 1)
    return np.stack([advantage(column) for column in values.T], axis=1)


def values_to_go(rollout: ScoredTurns, turns: int) -> NDArray[np.float64]:
    """The value from each of the turns 0 to `turns` on: the turn scores from there, plus the outcome.

    Turns after the last turn score have the outcome as value, whether the rollout reached them or not.
    """
    scores = np.zeros(turns + 1)
    given = rollout.turn_scores[:turns]
    scores[: len(given)] = given
    scores[turns] = rollout.score
    with np.errstate(over="ignore"):
        return np.clip(np.cumsum(scores[::-1])[::-1], -LARGEST, LARGEST)


def mean(values: Scores) -> Scores:
    """Minus the mean of the group."""
    centred, exponent = _centred(values)
    return _unscaled(centred, exponent)


def mean_std(values: Scores, *, epsilon: float = EPSILON, sample_std: bool = True) -> Scores:
    """The same, divided by the group's standard deviation plus `epsilon`.

    `epsilon` keeps differences that are far smaller than it from being inflated to the size of any other. With
    `sample_std` the variance is divided by n - 1, as in TRL; without, by n.
    """
    centred, exponent = _centred(values)
    if not centred.any():
        return centred
    with np.errstate(over="ignore"):
        scaled_epsilon = np.ldexp(epsilon, -exponent)
    return np.asarray(centred / (centred.std(ddof=int(sample_std)) + scaled_epsilon))


def leave_one_out(values: Scores) -> Scores:
    """Minus the mean of the other rollouts of the group."""
    centred, exponent = _centred(values)
    return _unscaled(centred * (len(values) / max(len(values) - 1, 1)), exponent)


def get_advantage(name: str, *, epsilon: float = EPSILON, sample_std: bool = True) -> Advantage:
    """A built-in advantage, an installed one, or `module:function`; ConfigError for anything else.

    `epsilon` and `sample_std` are for `mean_std`; the others take only scores.
    """
    advantage: Advantage = ADVANTAGES.resolve(name)
    if not callable(advantage):
        raise ConfigError(f"{name} is not an advantage: it needs a function from scores to advantages")
    return partial(mean_std, epsilon=epsilon, sample_std=sample_std) if advantage is mean_std else advantage


def _centred(values: Scores) -> tuple[Scores, np.integer]:
    """Deviations from the mean, scaled by a power of two, which is exact; the sum of huge values would overflow."""
    _, exponent = np.frexp(np.abs(values).max(initial=0.0))
    scaled = np.ldexp(values, -exponent)
    if len(values) < 2 or np.ptp(scaled) <= EQUAL_TOLERANCE:
        return np.zeros(len(values)), exponent
    return scaled - scaled.mean(), exponent


def _unscaled(values: Scores, exponent: np.integer) -> Scores:
    with np.errstate(over="ignore"):
        return np.asarray(np.clip(np.ldexp(values, exponent), -LARGEST, LARGEST))

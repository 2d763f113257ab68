"""Comparison of scores: two that differ only by rounding are equal, here and in everything that counts passes.

0.3 + 0.5 is 0.8, but 0.1 + 0.7 is 0.7999999999999999: a sum of components must not fail a pass score of 0.8 for that.
"""

from collections.abc import Iterable

TOLERANCE = 1e-9
"""Relative to the larger score, and at least absolute."""


def same_score(one: float | None, other: float | None) -> bool:
    """Whether two scores differ by rounding at most; None is the score of an unscored rollout."""
    if one is None or other is None:
        return one is other
    return abs(one - other) <= TOLERANCE * max(1.0, abs(one), abs(other))


def passes(score: float, pass_score: float) -> bool:
    """Whether a score is at least the pass score."""
    return score > pass_score or same_score(score, pass_score)


def exceeds(score: float, other: float) -> bool:
    """Whether a score is above another by more than rounding."""
    return score > other and not same_score(score, other)


def distinct_scores(scores: Iterable[float]) -> list[float]:
    """The scores that differ by more than rounding, in ascending order."""
    distinct: list[float] = []
    for score in sorted(scores):
        if not distinct or exceeds(score, distinct[-1]):
            distinct.append(score)
    return distinct

"""Unbiased estimators of pass@k and pass^k.

pass@k: the probability that at least one of k samples of an item passes. pass^k: that all k do. Both are computed per
item from all its n samples and averaged over items. Items with fewer than k scored samples are counted separately.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hermes_rl.core.tolerance import passes
from hermes_rl.evaluation.statistics.intervals import LEVEL, Interval, Moments, bounded_interval

# The default minimum score of a pass.
PASSING_SCORE = 1.0

# Less than for scores: the rates of items behave like powers of a score, so fewer items carry their variance.
_DF_FRACTION = 0.5


@dataclass(frozen=True, slots=True)
class PassRate:
    """`interval` is None when no item has k scored samples; `left_out` counts the items that have fewer."""

    k: int
    interval: Interval | None
    left_out: int


def pass_at_k(
    scores: Iterable[Sequence[float]], k: int, *, passing: float = PASSING_SCORE, level: float = LEVEL
) -> PassRate:
    """The probability that at least one of k samples of an item scores `passing` or more."""
    return _rate(scores, k, at_least_one_passes, passing, level)


def pass_hat_k(
    scores: Iterable[Sequence[float]], k: int, *, passing: float = PASSING_SCORE, level: float = LEVEL
) -> PassRate:
    """The probability that all of k samples of an item score `passing` or more (pass^k)."""
    return _rate(scores, k, all_pass, passing, level)


def at_least_one_passes(samples: int, passes: int, k: int) -> float:
    return 1 - math.comb(samples - passes, k) / math.comb(samples, k)


def all_pass(samples: int, passes: int, k: int) -> float:
    return math.comb(passes, k) / math.comb(samples, k)


def _rate(
    scores: Iterable[Sequence[float]], k: int, of_item: Callable[[int, int, int], float], passing: float, level: float
) -> PassRate:
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    items = list(scores)
    enough = [item for item in items if len(item) >= k]
    if not enough:
        return PassRate(k, None, len(items))
    values = [of_item(len(item), sum(passes(score, passing) for score in item), k) for item in enough]
    n_samples = sum(map(len, enough))
    moments = Moments.of(values)
    low, high, size = rate_interval(moments, max_effective_size(map(len, enough), k), level)
    interval = Interval(
        estimate=moments.mean,
        low=low,
        high=high,
        level=level,
        method="exact (Clopper-Pearson)" if n_samples == k * len(enough) else "effective size (Korn-Graubard)",
        n_items=len(enough),
        n_samples=n_samples,
        standard_error=moments.standard_error,
        effective_size=size,
    )
    return PassRate(k, interval, len(items) - len(enough))


def rate_interval(moments: Moments, max_size: float, level: float) -> tuple[float, float, float]:
    return bounded_interval(moments, (0.0, 1.0), max_size=max_size, level=level, df_fraction=_DF_FRACTION)


def max_effective_size(samples: Iterable[int], k: int) -> float:
    """The upper bound of the effective size.

    With k samples an item gives one 0/1 outcome, and each further sample at most one more. Items have equal weight, so
    the bound is a harmonic mean over items.
    """
    counts = list(samples)
    return len(counts) ** 2 / math.fsum(1 / (count - k + 1) for count in counts)

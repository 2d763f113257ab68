"""The mean score with its interval, clustered by item.

Every item has the same weight, however many of its samples were scored. The interval is Clopper-Pearson over the range
of the scores, at the effective sample size. For one 0/1 sample per item it is the exact binomial interval. The
effective size is at least the number of items and at most the number of samples.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from hermes_rl.core.errors import ConfigError
from hermes_rl.evaluation.statistics.distributions import clopper_pearson, student_t_quantile

LEVEL = 0.95

Bounds = tuple[float, float]

# From a search over the grid of scripts/coverage_simulation.py, for the narrowest intervals with nominal coverage.
DF_FRACTION = 0.75
_UNSEEN_ITEMS = 0.5
# With fewer items, they look alike by chance too often to give credit for repeated samples.
_MIN_ITEMS = 10
# A mean this close to an end of the range, relative to its width, is at that end: one score of 1e-17 among zeros says
# no more about the other items than a zero does.
_AT_END = 1e-9
# Fourth powers of scores outside these limits overflow or vanish.
_SMALLEST, _LARGEST = 1e-30, 1e30


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval, which has approximately the coverage `level`.

    `effective_size` is the number of independent 0/1 samples with the same information. `item_correlation` is the
    intraclass correlation of an item's samples (1: a second sample adds nothing), `design_effect` the variance relative
    to that of as many independent samples; both are None where unknown.
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str
    n_items: int
    n_samples: int
    standard_error: float
    effective_size: float
    item_correlation: float | None = None
    design_effect: float | None = None


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of the items' means: count, mean, and sums of squared and fourth-power deviations."""

    count: int
    mean: float
    squares: float
    fourths: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Moments":
        # Rounding would give equal values a tiny variance, which looks like high certainty.
        if min(values) == max(values):
            return cls(len(values), values[0], 0.0, 0.0)
        mean = fmean(values)
        squares = [(value - mean) ** 2 for value in values]
        return cls(len(values), mean, math.fsum(squares), math.fsum(square * square for square in squares))

    @property
    def standard_error(self) -> float:
        """The cluster-robust standard error of the mean."""
        return math.sqrt(self.squares / (self.count - 1) / self.count) if self.count > 1 else math.nan


def mean_interval(
    scores: Iterable[Sequence[float]], *, bounds: Bounds | None = None, level: float = LEVEL
) -> Interval | None:
    """The mean over items of each item's mean score; None when nothing was scored.

    Each element of `scores` has the scores of one item; items without any are skipped. `bounds` are the lowest and
    highest possible score. By default they are 0 and 1 if no score lies outside, else unknown.
    """
    items = [list(item) for item in scores if len(item) > 0]
    if not items:
        return None
    flat = list(itertools.chain.from_iterable(items))
    if not all(map(math.isfinite, flat)):
        raise ValueError("non-finite score; filter such rollouts out first")
    known = known_bounds(flat, bounds)
    unit = max(map(abs, known or (min(flat), max(flat))))
    if unit == 0 or _SMALLEST <= unit <= _LARGEST:
        return _interval(items, known, level)
    found = _interval(
        [[score / unit for score in item] for item in items], known and (known[0] / unit, known[1] / unit), level
    )
    return replace(
        found,
        estimate=found.estimate * unit,
        low=found.low * unit,
        high=found.high * unit,
        standard_error=found.standard_error * unit,
    )


def _interval(items: Sequence[Sequence[float]], known: Bounds | None, level: float) -> Interval:
    flat = list(itertools.chain.from_iterable(items))
    moments = Moments.of([fmean(item) for item in items])
    samples = len(items) ** 2 / math.fsum(1 / len(item) for item in items)
    binary = known is not None and all(score in known for score in flat)
    low, high, size = bounded_interval(
        moments, known or (min(flat), max(flat)), max_size=samples if binary else math.inf, level=level
    )
    if known is None:
        low, high = widen_to_student_t(moments, low, high, level)
    return Interval(
        estimate=moments.mean,
        low=low,
        high=high,
        level=level,
        method=_method(known, exact=binary and len(flat) == len(items)),
        n_items=len(items),
        n_samples=len(flat),
        standard_error=moments.standard_error,
        effective_size=size,
        item_correlation=_item_correlation(items),
        design_effect=_design_effect(moments, flat, samples),
    )


def bounded_interval(
    moments: Moments, bounds: Bounds, *, max_size: float, level: float, df_fraction: float = DF_FRACTION
) -> tuple[float, float, float]:
    """The interval's ends and its effective size, which is at most `max_size`."""
    lowest, width = bounds[0], bounds[1] - bounds[0]
    if width <= 0:
        # Equal scores of unknown range: nothing bounds the score of another item.
        return -math.inf, math.inf, float(moments.count)
    share = min(1.0, max(0.0, (moments.mean - lowest) / width))
    scaled = Moments(moments.count, share, moments.squares / width**2, moments.fourths / width**4)
    size = min(max(_effective_size(scaled, level, df_fraction), moments.count), max_size)
    low, high = clopper_pearson(share * size, size, level)
    return lowest + width * low, lowest + width * high, size


def widen_to_student_t(moments: Moments, low: float, high: float, level: float) -> tuple[float, float]:
    """Widen to Student's t interval: few items show too little of an unknown range."""
    if moments.count < 2:
        return -math.inf, math.inf
    half = student_t_quantile((1 + level) / 2, moments.count - 1) * moments.standard_error
    return min(low, moments.mean - half), max(high, moments.mean + half)


def known_bounds(flat: Sequence[float], bounds: Bounds | None) -> Bounds | None:
    lowest, highest = min(flat), max(flat)
    if bounds is None:
        return (0.0, 1.0) if lowest >= 0 and highest <= 1 else None
    if not bounds[0] < bounds[1]:
        raise ConfigError(
            f"the range of scores is given as {bounds[0]} to {bounds[1]}; give the lowest first, then the highest"
        )
    if not bounds[0] <= lowest <= highest <= bounds[1]:
        raise ConfigError(
            f"scores range from {lowest} to {highest}, outside the given range {bounds[0]} to {bounds[1]}; "
            "give the lowest and highest score that compute_reward can return, or no range"
        )
    return bounds


def _effective_size(moments: Moments, level: float, df_fraction: float) -> float:
    """The number of independent 0/1 samples with this standard error, reduced for the uncertainty of that error.

    Korn and Graubard's effective size, with two changes for coverage when few items carry all the variance: the degrees
    of freedom are Satterthwaite's, from the fourth moment, not the number of items; and the variance includes half an
    unseen item at the largest distance from the mean.
    """
    count, max_variance = moments.count, moments.mean * (1 - moments.mean)
    if count < _MIN_ITEMS or max_variance < _AT_END:
        return count
    concentration = moments.fourths / moments.squares**2 if moments.squares > 0 else 1.0
    degrees = count - 1.0
    if concentration > 1 / count:
        degrees = min(degrees, max(1.0, df_fraction * 2 / (concentration - 1 / count)))
    probability = (1 + level) / 2
    inflation = student_t_quantile(probability, degrees) / NormalDist().inv_cdf(probability)
    return max_variance * count * (count - 1) / (moments.squares + _UNSEEN_ITEMS * max_variance) / inflation**2


def _method(known: Bounds | None, *, exact: bool) -> str:
    if exact:
        return "exact (Clopper-Pearson)"
    return "effective size (Korn-Graubard)" if known else "effective size (Korn-Graubard), range unknown"


def _item_correlation(items: Sequence[Sequence[float]]) -> float | None:
    """The ANOVA estimator for unequal numbers of samples, clipped to 0..1."""
    total, count = sum(map(len, items)), len(items)
    if count < 2 or total == count:
        return None
    mean = math.fsum(itertools.chain.from_iterable(items)) / total
    means = [fmean(item) for item in items]
    between = math.fsum(len(item) * (own - mean) ** 2 for item, own in zip(items, means, strict=True)) / (count - 1)
    within = math.fsum((score - own) ** 2 for item, own in zip(items, means, strict=True) for score in item)
    within /= total - count
    size = (total - sum(len(item) ** 2 for item in items) / total) / (count - 1)
    spread = between + (size - 1) * within
    return min(1.0, max(0.0, (between - within) / spread)) if spread > 0 else None


def _design_effect(moments: Moments, flat: Sequence[float], samples: float) -> float | None:
    if moments.count < 2:
        return None
    mean = fmean(flat)
    # Also 0 when the squared differences underflow.
    variance = math.fsum((score - mean) ** 2 for score in flat) / (len(flat) - 1) / samples
    return moments.standard_error**2 / variance if variance > 0 else None

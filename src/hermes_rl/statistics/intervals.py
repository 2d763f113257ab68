"""The mean score with its interval, clustered by item.

Every item counts the same, however many of its samples were scored. The interval is Clopper and Pearson's over the
range of the scores, at the size of a sample of independent successes and failures that would tell as much. It is the
exact binomial interval for one 0/1 sample an item, and claims no more than the samples and no less than the items give.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from hermes_rl.errors import ConfigError
from hermes_rl.statistics.distributions import clopper_pearson, student_t_quantile

LEVEL = 0.95

Bounds = tuple[float, float]

# Found by a search over the grid of scripts/coverage_simulation.py, for intervals that cover and are not wide for it.
SHARE_OF_FREEDOM = 0.75
_UNSEEN_ITEMS = 0.5
# With fewer items, items that look alike by chance are too common to credit the repeated samples of each.
_FEWEST_ITEMS = 10


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the range that holds the true value in at least `level` of all evaluations, near enough.

    `effective_size` is the number of independent successes and failures that would tell as much. `item_correlation` is
    how alike the samples of one item are (0: not at all, 1: a second sample tells nothing new), `design_effect` how
    many times the variance exceeds that of as many independent samples; both are None where they are unknown.
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
    """What the interval needs of the items' means: how many, their mean, and the sums of powers about it."""

    count: int
    mean: float
    squares: float
    fourths: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Moments":
        # Rounding would make a tiny spread of equal values, and a tiny spread reads as great certainty.
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

    `scores` has the scores of one item in each element; items without any are left out. `bounds` are the lowest and the
    highest score that can be given. Unsaid, they are 0 and 1 if no score lies outside, else taken as unknown.
    """
    items = [list(item) for item in scores if len(item) > 0]
    if not items:
        return None
    flat = list(itertools.chain.from_iterable(items))
    if not all(map(math.isfinite, flat)):
        raise ValueError("a score is not a finite number; leave such rollouts out before the statistics")
    known = known_bounds(flat, bounds)
    moments = Moments.of([fmean(item) for item in items])
    samples = len(items) ** 2 / math.fsum(1 / len(item) for item in items)
    binary = known is not None and all(score in known for score in flat)
    low, high, size = bounded_interval(
        moments, known or (min(flat), max(flat)), most=samples if binary else math.inf, level=level
    )
    if known is None:
        low, high = at_least_student(moments, low, high, level)
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
    moments: Moments, bounds: Bounds, *, most: float, level: float, share_of_freedom: float = SHARE_OF_FREEDOM
) -> tuple[float, float, float]:
    """The two ends, and the effective size they were found at, which is at most `most`."""
    lowest, width = bounds[0], bounds[1] - bounds[0]
    if width <= 0:
        # Equal scores of unknown range: nothing was seen that tells how far another item's may lie.
        return -math.inf, math.inf, float(moments.count)
    share = min(1.0, max(0.0, (moments.mean - lowest) / width))
    scaled = Moments(moments.count, share, moments.squares / width**2, moments.fourths / width**4)
    size = min(max(_effective_size(scaled, level, share_of_freedom), moments.count), most)
    low, high = clopper_pearson(share * size, size, level)
    return lowest + width * low, lowest + width * high, size


def at_least_student(moments: Moments, low: float, high: float, level: float) -> tuple[float, float]:
    """What was seen of an unknown range is too little of it when items are few."""
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
            f"the stated range of scores is {bounds[0]} to {bounds[1]}; give the lowest first, then the highest"
        )
    if not bounds[0] <= lowest <= highest <= bounds[1]:
        raise ConfigError(
            f"scores reach from {lowest} to {highest}, outside the stated range {bounds[0]} to {bounds[1]}; "
            "state the lowest and highest score that compute_reward can give, or no range"
        )
    return bounds


def _effective_size(moments: Moments, level: float, share_of_freedom: float) -> float:
    """How many independent 0/1 samples would have this standard error, less what the error itself is unsure by.

    Korn and Graubard's effective size, with two changes that its coverage needs when few items carry all the spread:
    the degrees of freedom are those of the spread found (Satterthwaite's, by the fourth moment), not the number of
    items; and the spread is taken as if half an item more had been seen, of the kind furthest from the mean.
    """
    count, most_spread = moments.count, moments.mean * (1 - moments.mean)
    if count < _FEWEST_ITEMS or most_spread == 0:
        return count
    concentration = moments.fourths / moments.squares**2 if moments.squares > 0 else 1.0
    freedom = count - 1.0
    if concentration > 1 / count:
        freedom = min(freedom, max(1.0, share_of_freedom * 2 / (concentration - 1 / count)))
    probability = (1 + level) / 2
    unsure = student_t_quantile(probability, freedom) / NormalDist().inv_cdf(probability)
    return most_spread * count * (count - 1) / (moments.squares + _UNSEEN_ITEMS * most_spread) / unsure**2


def _method(known: Bounds | None, *, exact: bool) -> str:
    if exact:
        return "exact (Clopper-Pearson)"
    return "effective size (Korn-Graubard)" if known else "effective size (Korn-Graubard), range unknown"


def _item_correlation(items: Sequence[Sequence[float]]) -> float | None:
    """The estimator of the analysis of variance, for items with unequal numbers of samples, kept within 0..1."""
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
    # 0 too when scores differ by less than can be squared.
    variance = math.fsum((score - mean) ** 2 for score in flat) / (len(flat) - 1) / samples
    return moments.standard_error**2 / variance if variance > 0 else None

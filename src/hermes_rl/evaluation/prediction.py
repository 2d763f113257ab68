"""Ranges: an estimate, with the interval in which four of five later measurements are expected to lie."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from hermes_rl.evaluation.statistics.distributions import student_t_quantile

LEVEL = 0.8
TAILS = (1 - LEVEL) / 2, (1 + LEVEL) / 2


class Range(NamedTuple):
    estimate: float
    low: float
    high: float

    def holds(self, observed: float) -> bool:
        return self.low <= observed <= self.high


CERTAIN = Range(1.0, 1.0, 1.0)


def of_draws(estimate: float, draws: Sequence[float]) -> Range:
    """From draws of the later measurement."""
    low, high = (quantile(draws, tail) for tail in TAILS)
    return Range(estimate, low, high)


def mean_prediction(items: Sequence[Sequence[float]], later: float = math.inf) -> Range:
    """The mean of `later` new items from those of these, for amounts that are never negative: Student's t.

    One item says nothing about how items differ, so its range has no upper end.
    """
    means = [fmean(item) for item in items if item]
    middle = fmean(means)
    if len(means) == 1:
        return Range(middle, 0.0, math.inf)
    reach = student_t_quantile(TAILS[1], len(means) - 1) * stdev(means) * math.sqrt(1 / len(means) + 1 / later)
    return Range(middle, max(middle - reach, 0.0), middle + reach)


def relative(mean: Range) -> Range:
    return Range(1.0, mean.low / mean.estimate, mean.high / mean.estimate) if mean.estimate > 0 else CERTAIN


def inverse(share: Range) -> Range:
    return Range(*(1 / value if value > 0 else math.inf for value in (share.estimate, share.high, share.low)))


def product(first: Range, second: Range, scale: float) -> Range:
    """The product of two that vary independently, so that their relative deviations add in squares."""
    middle = first.estimate * second.estimate * scale
    if not 0 < middle < math.inf:
        # Nothing of something endless is nothing, and not NaN.
        ends = zip(first, second, strict=True)
        return Range(*(0.0 if 0 in (scale, *pair) else math.prod(pair) * scale for pair in ends))
    down = math.hypot(1 - first.low / first.estimate, 1 - second.low / second.estimate)
    up = math.hypot(first.high / first.estimate - 1, second.high / second.estimate - 1)
    return Range(middle, middle * max(1 - down, 0.0), middle * (1 + up))


def plus(range_: Range, amount: float) -> Range:
    return Range(*(end + amount for end in range_))


def figure(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def quantile(values: Sequence[float], probability: float) -> float:
    ordered = sorted(values)
    place = probability * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

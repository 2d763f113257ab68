"""A Prometheus-style histogram."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values per bucket, with a last bucket above all bounds, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

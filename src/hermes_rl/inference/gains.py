"""Gains: whether more in flight is worth it, by rounds with less and with more. Throughput that stays is a queue.

Always true: a judgement that no cut can answer is forgotten, so that slower work cannot hold a limit down for ever.
"""

from typing import NamedTuple

# Rounds are compared when one had so many times the other's in flight: nearer, chance decides.
APART = 1.9
# The best time is forgotten by so much each round, as conversations grow longer.
FORGOTTEN = 1.02
# A cut to this part must have made answers quicker by that part, or the work itself has become slower.
CUT, QUICKER = 0.7, 0.85


class Point(NamedTuple):
    """A round as it was measured: on average in flight, and the work done in a second."""

    in_flight: float
    throughput: float

    @property
    def seconds(self) -> float:
        """What one unit of work took, by Little's law."""
        return self.in_flight / self.throughput


class Gains:
    """With twice as much in flight, throughput must grow by the part `worth`; `slowest` times the best time is slow."""

    def __init__(self, worth: float, slowest: float) -> None:
        self._worth, self._slowest = worth, slowest
        self.forget()

    def forget(self) -> None:
        self.ground: Point | None = None
        """The last point that was worth its price."""
        self._best: float | None = None
        self._strained: Point | None = None
        """Where it was first too slow, until it no longer is."""

    def poor(self, point: Point) -> bool:
        """Whether the round showed a queue."""
        if point.throughput <= 0 or point.in_flight <= 0:
            return False
        slow = self._slow(point)
        ground = self.ground
        if ground is None or point.in_flight <= ground.in_flight:
            self.ground = point
            return slow
        more = point.in_flight / ground.in_flight
        if more < APART:
            return slow
        gained = (point.throughput / ground.throughput - 1) / (more - 1)
        if gained < self._worth:
            return True
        self.ground = point
        return slow

    def _slow(self, point: Point) -> bool:
        seconds = point.seconds
        self._best = seconds if self._best is None else min(seconds, self._best * FORGOTTEN)
        if seconds <= self._slowest * self._best:
            self._strained = None
            return False
        before = self._strained
        if before and point.in_flight <= CUT * before.in_flight and seconds > QUICKER * before.seconds:
            self._best, self._strained = seconds, None
            return False
        self._strained = before or point
        return True

"""What came into a store through this process: groups, rollouts, scores, failures by cause, and how long they took.

Always true: it counts from the process's start, as Prometheus wants it; a cause beyond the first hundred is `other`, so
that nobody can make series at will.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from hermes_rl.store.database.rows import GroupRow

MOST_CAUSES = 100
SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
SCORES = (-1.0, -0.5, 0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class Histogram:
    """Counts of values up to each of some bounds, and beyond; their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Intake:
    """By the number of the environment. A group that was here already does not count."""

    def __init__(self) -> None:
        self.groups: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.failures: Counter[tuple[int, str, str]] = Counter()
        self.seconds: dict[int, Histogram] = {}
        self.scores: dict[int, Histogram] = {}

    def note(self, environment: int, group: GroupRow, size: int) -> None:
        self.groups[environment] += 1
        self.bytes[environment] += size
        seconds = self.seconds.setdefault(environment, Histogram(SECONDS))
        scores = self.scores.setdefault(environment, Histogram(SCORES))
        for rollout in group.rollouts:
            seconds.note(rollout.seconds)
            self.tokens[environment] += rollout.completion_tokens or 0
            if rollout.score is not None:
                scores.note(rollout.score)
            if rollout.failure is not None:
                self.failures[self._cause(environment, rollout.failure, rollout.cause or "")] += 1

    def _cause(self, environment: int, whose: str, cause: str) -> tuple[int, str, str]:
        named = environment, whose, cause
        return named if named in self.failures or len(self.failures) < MOST_CAUSES else (environment, whose, "other")

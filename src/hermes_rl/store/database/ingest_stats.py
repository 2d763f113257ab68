"""Statistics of the groups added through this process: groups, bytes, scores, durations, failures by cause.

Always true: counts start with the process, as in Prometheus; causes beyond the first hundred count as `other`, which
bounds the number of series.
"""

from collections import Counter

from hermes_rl.core.histogram import Histogram
from hermes_rl.store.database.rows import GroupRow

MAX_CAUSES = 100
SECONDS_BUCKETS = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
SCORE_BUCKETS = (-1.0, -0.5, 0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


class IngestStats:
    """Counts by environment number. A group that was already stored does not count."""

    def __init__(self) -> None:
        self.groups: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.failures: Counter[tuple[int, str, str]] = Counter()
        self.seconds: dict[int, Histogram] = {}
        self.scores: dict[int, Histogram] = {}

    def record(self, environment: int, group: GroupRow, size: int) -> None:
        self.groups[environment] += 1
        self.bytes[environment] += size
        seconds = self.seconds.setdefault(environment, Histogram(SECONDS_BUCKETS))
        scores = self.scores.setdefault(environment, Histogram(SCORE_BUCKETS))
        for rollout in group.rollouts:
            seconds.observe(rollout.seconds)
            self.tokens[environment] += rollout.completion_tokens or 0
            if rollout.score is not None:
                scores.observe(rollout.score)
            if rollout.failure is not None:
                self.failures[self._cause(environment, rollout.failure, rollout.cause or "")] += 1

    def _cause(self, environment: int, whose: str, cause: str) -> tuple[int, str, str]:
        key = environment, whose, cause
        return key if key in self.failures or len(self.failures) < MAX_CAUSES else (environment, whose, "other")

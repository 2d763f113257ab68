"""The audit gap: trained minus audited reward over audited rollouts, with its 95% interval clustered by group.

Always true: a rollout whose audit failed is counted and in no mean. The interval is that of an evaluation's mean with
groups as items: the exact binomial interval if each group has one audited rollout and the gaps are 0 or 1.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hermes_rl.evaluation.statistics.intervals import mean_interval


@dataclass(frozen=True, slots=True)
class AuditGap:
    """The gap over `rollouts` audited rollouts; `low` and `high` are infinite where too few are known."""

    mean: float
    low: float
    high: float
    rollouts: int

    def metrics(self) -> dict[str, float]:
        """By name, without a prefix."""
        ends = {"gap": self.mean, "gap_low": self.low, "gap_high": self.high}
        return {name: value for name, value in ends.items() if math.isfinite(value)}


def audit_gap(gaps: Iterable[Sequence[float]]) -> AuditGap | None:
    """The gap from the differences of each group's audited rollouts; None without any."""
    groups = [[gap for gap in group if math.isfinite(gap)] for group in gaps]
    found = mean_interval(groups)
    return None if found is None else AuditGap(found.estimate, found.low, found.high, found.n_samples)


def gap_interval(gaps: Iterable[Sequence[float]]) -> dict[str, float]:
    """The gap and the ends of its interval under the names of `RolloutCounts.summary`."""
    found = audit_gap(gaps)
    return {f"audit_{name}": value for name, value in found.metrics().items()} if found else {}

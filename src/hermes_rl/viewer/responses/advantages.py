"""The advantage of each rollout, relative to the others of its group and seat.

Always true: only rollouts that count in the trainer's baseline have one; it is computed by the rule of the run.
"""

from collections.abc import Sequence

from hermes_rl.core.trajectory import in_baseline
from hermes_rl.viewer.index.queries import IndexedGroup, IndexedRollout
from hermes_rl.viewer.sources.source import AdvantageRule


def group_advantages(rule: AdvantageRule, group: IndexedGroup, members: Sequence[IndexedRollout]) -> dict[int, float]:
    """By the rollout's number; empty where the rule cannot be applied, or not all members are known."""
    if rule.compute is None or len(members) < group.rollouts:
        return {}
    found: dict[int, float] = {}
    for seat in {row.seat for row in members}:
        compared = [row for row in members if row.seat == seat and in_baseline(row.score, row.withheld)]
        try:
            values = rule.compute([row.score or 0.0 for row in compared])
        except ImportError:
            return {}
        found |= {row.n: float(value) for row, value in zip(compared, values, strict=True)}
    return found

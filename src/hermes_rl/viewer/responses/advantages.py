"""The advantage of each rollout, relative to the others of its group and seat, or to those it shares its turns with.

Always true: only rollouts that count in the trainer's baseline have one; it is computed by the rule of the run. Where
rollouts branch it is that of a rollout's last turns.
"""

from collections.abc import Sequence
from statistics import fmean

from hermes_rl.core.rollout_tree import sibling_segments
from hermes_rl.core.trajectory import Branch, in_baseline
from hermes_rl.viewer.index.queries import IndexedGroup, IndexedRollout
from hermes_rl.viewer.sources.source import AdvantageRule


def group_advantages(rule: AdvantageRule, group: IndexedGroup, members: Sequence[IndexedRollout]) -> dict[int, float]:
    """By the rollout's number; empty where the rule cannot be applied, or not all members are known."""
    if rule.compute is None or len(members) < group.rollouts:
        return {}
    found: dict[int, float] = {}
    try:
        for seat in {row.seat for row in members}:
            compared = [place for place, row in enumerate(members) if row.seat == seat and _in_baseline(row)]
            found |= {members[place].n: value for place, value in _advantages(rule, members, compared).items()}
    except (ImportError, ValueError):
        return {}
    return found


def _in_baseline(row: IndexedRollout) -> bool:
    return in_baseline(row.score, row.withheld)


def _advantages(rule: AdvantageRule, members: Sequence[IndexedRollout], compared: Sequence[int]) -> dict[int, float]:
    """By the rollout's place in the group. The last segment of a rollout comes after its others."""
    found: dict[int, float] = {}
    for after, segments in sibling_segments([_branch(row) for row in members], compared):
        if after is not None and len(segments) == 1:
            found[segments[0].rollout] = found[after]
        elif rule.compute is not None:
            values = rule.compute([fmean(members[leaf].score or 0.0 for leaf in each.leaves) for each in segments])
            found |= {each.rollout: float(value) for each, value in zip(segments, values, strict=True)}
    return {place: found[place] for place in compared}


def _branch(row: IndexedRollout) -> Branch | None:
    return None if row.branch_of is None or row.branch_turn is None else Branch(row.branch_of, row.branch_turn)

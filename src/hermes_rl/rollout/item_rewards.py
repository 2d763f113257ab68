"""How the scores of each training item are distributed lately: their mean, and their variance within a group.

Always true: estimates depend only on the groups added and their order, so adding stored groups again in their order
restores them. The variance compares rollouts of one group, never of different groups: only scores that differ within a
group give advantages, and an item whose mean moved from 0 to 1 has no variance if its groups were unanimous.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# In groups of the same item. The policy changes between two visits of an item, so a long window lags behind it; a short
# one takes a rarely solved item for a hopeless one. With 2 the window is worth 3.4 groups; benchmarks/item_sampling.py
# --sweep compares others.
HALF_LIFE = 2.0


class RewardEstimate(NamedTuple):
    """An item's scores, each group weighted by half for every `half_life` later groups of the item.

    `groups` and `rollouts` are the weighted counts behind it. `last` is the number of the item's last group, counted
    over all items.
    """

    mean: float
    variance: float
    groups: float
    rollouts: float
    last: int

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the variance: 0 when no group had two scores."""
        return self.rollouts - self.groups


@dataclass(slots=True)
class ItemRewards:
    """The estimates of all items seen, by item id."""

    half_life: float = HALF_LIFE
    groups: int = 0
    """Groups added, of all items."""
    estimates: dict[str, RewardEstimate] = field(default_factory=dict)
    _largest: float | None = field(default=None, compare=False, repr=False)

    @property
    def largest_variance(self) -> float:
        """The largest variance of an item; 0 before scores of a group differed."""
        if self._largest is None:
            self._largest = max((estimate.variance for estimate in self.estimates.values()), default=0.0)
        return self._largest

    def add(self, item_id: str, scores: Sequence[float]) -> None:
        """Add the scores of a group, as its rollouts have them; nothing when none was scored."""
        if not scores:
            return
        self.groups += 1
        self._largest = None
        count = len(scores)
        mean = sum(scores) / count
        # Exactly 0 for equal scores, which their rounded mean need not give.
        squares = 0.0 if min(scores) == max(scores) else sum((score - mean) ** 2 for score in scores)
        groups, rollouts, total = 1.0, float(count), mean * count
        if (old := self.estimates.get(item_id)) is not None:
            kept = 0.5 ** (1 / self.half_life)
            groups += kept * old.groups
            rollouts += kept * old.rollouts
            total += kept * old.rollouts * old.mean
            squares += kept * old.degrees * old.variance
        degrees = rollouts - groups
        variance = squares / degrees if degrees > 0 else 0.0
        self.estimates[item_id] = RewardEstimate(total / rollouts, variance, groups, rollouts, self.groups)

"""The mean score of a set of groups: the number that the terminal and the viewer show for the same file.

Always true: every group has the same weight, however many of its rollouts were scored; groups without a score are not
in the mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


def group_mean(scores: Sequence[float]) -> float | None:
    """The mean score of one group; None when none of its rollouts was scored."""
    return fmean(scores) if scores else None


@dataclass(slots=True)
class GroupMeans:
    """The mean over groups of their mean scores, added one at a time; `squares` sums the squared deviations."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, scores: Sequence[float]) -> None:
        """Add a group by the scores of its scored rollouts."""
        mean = group_mean(scores)
        if mean is None:
            return
        before = self.mean
        self.count += 1
        self.total += mean
        if before is not None:
            distance = mean - before
            # Not `** 2`, which raises when it overflows.
            self.squares += distance * distance * ((self.count - 1) / self.count)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def standard_error(self) -> float | None:
        """Of the mean, from the spread of the group means; None with fewer than two groups or on overflow."""
        if self.count < 2:
            return None
        error = math.sqrt(self.squares / (self.count - 1) / self.count)
        return error if math.isfinite(error) else None

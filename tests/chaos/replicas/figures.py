"""What was seen of a fleet under faults, in numbers: its rate before, during and after each, and when it was whole.

Always true: a rate is of groups in the store, so of what the trajectory API has acknowledged.
"""

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

LOOK = 0.25
# A rate is taken over so many seconds.
WINDOW = 12.0
# A fleet has recovered when it makes so much of what it made before, for a whole window.
RECOVERED = 0.9


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    victim: str
    shards: int
    """Served from there."""
    in_flight: int
    """Requests that the model was answering at that moment."""
    served_again: float
    """Seconds until every shard was served again."""
    delivers_again: float
    """Seconds until each of its shards had delivered another group."""
    recovered: float | None
    """Seconds until all were served and the rate was at least 0.9 of that before; None when that was not seen."""
    rate_before: float
    rate_during: float
    """Groups a second, of all shards together; until its shards delivered again."""
    rate_after: float


@dataclass
class Course:
    """Groups in the store, looked at a few times a second."""

    moments: list[tuple[float, int]] = field(default_factory=list)

    def rate(self, since: float, until: float) -> float:
        seen = [one for one in self.moments if since <= one[0] <= until]
        if len(seen) < 2:
            return 0.0
        (first, low), (last, high) = seen[0], seen[-1]
        return (high - low) / max(last - first, LOOK)

    def recovered(self, since: float, rate: float, until: float) -> float | None:
        """The beginning of the first whole window that has enough of this rate."""
        for moment, _ in self.moments:
            if since <= moment <= until - WINDOW and self.rate(moment, moment + WINDOW) >= RECOVERED * rate:
                return moment
        return None

    @property
    def seconds(self) -> float:
        return self.moments[-1][0] - self.moments[0][0] if self.moments else 0.0


def summary(faults: list[Fault]) -> dict[str, Any]:
    """Of all faults together; empty where there were none."""
    if not faults:
        return {"faults": []}
    recovered = [one.recovered for one in faults if one.recovered is not None]
    kept = [one.rate_after / one.rate_before for one in faults if one.rate_before]
    return {
        "faults": [asdict(one) for one in faults],
        "in_progress": round(sum(one.in_flight > 0 for one in faults) / len(faults), 2),
        "served_again_median": round(median(one.served_again for one in faults), 1),
        "delivers_again_median": round(median(one.delivers_again for one in faults), 1),
        "recovered_median": round(median(recovered), 1) if recovered else None,
        "recovered_worst": max(recovered, default=None),
        "not_seen_to_recover": len(faults) - len(recovered),
        "rate_before_median": round(median(one.rate_before for one in faults), 2),
        "rate_during_median": round(median(one.rate_during for one in faults), 2),
        "rate_after_median": round(median(one.rate_after for one in faults), 2),
        "rate_after_to_before_median": round(median(kept), 2) if kept else None,
    }

"""The limit on the gap between trained and audited reward, which ends a run whose reward is gamed.

Always true: only the lower end of a step's 95% interval counts, and a step without audits changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class AuditLimit:
    """Reached when the lower end exceeds `limit` in `steps` steps in a row."""

    limit: float
    steps: int
    _above: list[int] = field(default_factory=list)
    """The last steps in a row that exceeded it."""

    def reached(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """Why the run ends after this step; None while it goes on."""
        low = metrics.get("audit/gap_low")
        # A run that resumed from an earlier checkpoint takes steps again.
        self._above = [earlier for earlier in self._above if earlier < step]
        if low is None:
            return None
        self._above = [*self._above, step] if low > self.limit else []
        if len(self._above) < self.steps:
            return None
        return (
            f"audit gap {metrics['audit/gap']:+.3f} at step {step}, at least {low:+.3f} with 95% confidence; the lower "
            f"end was above max_audit_gap {self.limit:g} for {self.steps} steps, so the reward may be gamed: read the "
            "rollouts with an audited score below their score, fix the reward or raise the limit"
        )

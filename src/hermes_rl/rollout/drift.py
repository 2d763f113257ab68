"""Signals of a policy that drifts towards a shortcut, from the transcripts and scores of its groups.

Always true: they cost no model call and no sandbox, and none is a verdict. Each is absent where its question makes no
sense: without tool calls, with one component, with answers of one length.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.messages import tools_used
from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.rewards.cheat_signatures import suspicious_reads

# The share of its positive components above which a reward comes from one of them.
DOMINANT = 0.9


@dataclass
class CenteredProducts:
    """Sums over groups of squared and multiplied deviations from the group's mean."""

    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0

    def add(self, pairs: list[tuple[float, float]]) -> None:
        if not pairs:
            return
        mean_x, mean_y = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
        for dx, dy in ((x - mean_x, y - mean_y) for x, y in pairs):
            # Not `** 2`, which raises when it overflows.
            self.xx += dx * dx
            self.yy += dy * dy
            self.xy += dx * dy

    @property
    def correlation(self) -> float | None:
        """Pearson's, within groups; None where one of the two never differs within a group."""
        scale = math.sqrt(self.xx) * math.sqrt(self.yy)
        return max(-1.0, min(1.0, self.xy / scale)) if math.isfinite(scale) and scale > 0 else None


@dataclass
class DriftSignals:
    """Counted over groups."""

    rollouts: int = 0
    with_reads: int = 0
    tools: Counter[str] = field(default_factory=Counter)
    composed: int = 0
    one_component: int = 0
    lengths: CenteredProducts = field(default_factory=CenteredProducts)

    def add(self, group: Group) -> None:
        scored = [(rollout, _own_messages(rollout)) for rollout in group.scored]
        for rollout, result in scored:
            self.rollouts += 1
            self.tools.update(tools_used(result.messages[result.prompt_length :]))
            self.with_reads += next(suspicious_reads(result), None) is not None
            self._add_components(rollout)
        self.lengths.add([(float(len(result.final_response)), rollout.score or 0.0) for rollout, result in scored])

    def _add_components(self, rollout: Rollout) -> None:
        paid = [value for value in rollout.components.values() if value > 0]
        if len(rollout.components) > 1 and paid:
            self.composed += 1
            self.one_component += max(paid) >= DOMINANT * sum(paid)

    @property
    def tool_entropy(self) -> float | None:
        """Of the names of the called tools, in bits; None without a call."""
        calls = self.tools.total()
        if not calls:
            return None
        return math.fsum(-count / calls * math.log2(count / calls) for count in self.tools.values())

    def summary(self) -> dict[str, float]:
        """By name; what is absent is left out."""
        signals = {
            "drift_suspicious_reads": self.with_reads / self.rollouts if self.tools and self.rollouts else None,
            "drift_tool_entropy": self.tool_entropy,
            "drift_one_component": self.one_component / self.composed if self.composed else None,
            "drift_length_correlation": self.lengths.correlation,
        }
        return {name: value for name, value in signals.items() if value is not None}


def _own_messages(rollout: Rollout) -> AgentResult:
    """The transcript as rewards see it; where a record does not say so, the prompt ends before the first answer."""
    messages = rollout.messages
    answers = (at for at, message in enumerate(messages) if message.get("role") == "assistant")
    length = rollout.metadata.get("prompt_length")
    return AgentResult(messages, prompt_length=next(answers, len(messages)) if length is None else int(length))

"""The rollouts in flight, for displays: turns, tokens and last tool of each.

It only reads the results that agents fill; a rollout is listed from its first model call until it ends.
"""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from hermes_rl.agent.result import AgentResult

SHOWN_ID = 8


class PlannedRollout(Protocol):
    @property
    def item_id(self) -> str: ...
    @property
    def index(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LiveRollout:
    """`result` is that of its agent, which fills it; `began` is on the monotonic clock."""

    name: str
    result: AgentResult
    began: float

    @property
    def tokens(self) -> int:
        """Completion tokens of its finished turns."""
        return self.result.usage.completion_tokens or 0

    @property
    def last_tool(self) -> str | None:
        return self.result.tool_uses[-1].name if self.result.tool_uses else None

    @property
    def scoring(self) -> bool:
        """Whether its agent has ended, and the reward runs."""
        return self.result.stop_reason is not None

    @property
    def text(self) -> str:
        tool = f", last tool {self.last_tool}" if self.last_tool else ""
        scoring = ", being scored" if self.scoring else ""
        seconds = time.monotonic() - self.began
        return f"{_turns(self.result.turns_used)}, {self.tokens:,} tokens{tool}{scoring}, {seconds:.0f} s"


class RolloutsInFlight:
    def __init__(self) -> None:
        self._rollouts: dict[int, LiveRollout] = {}

    def begin(self, plan: PlannedRollout, result: AgentResult) -> None:
        name = f"{plan.item_id[:SHOWN_ID]} #{plan.index}"
        self._rollouts[id(plan)] = LiveRollout(name, result, time.monotonic())

    def end(self, plan: PlannedRollout) -> None:
        self._rollouts.pop(id(plan), None)

    def oldest(self, count: int) -> list[LiveRollout]:
        return sorted(self._rollouts.values(), key=lambda rollout: rollout.began)[:count]

    @property
    def text(self) -> str:
        """All of them in one line; empty when there are none."""
        rollouts = list(self._rollouts.values())
        if not rollouts:
            return ""
        used = [rollout.result.turns_used for rollout in rollouts]
        few, many = min(used), max(used)
        turns = _turns(many) if few == many else f"{few} to {_turns(many)}"
        tools = Counter(rollout.last_tool for rollout in rollouts if rollout.last_tool)
        last = ", ".join(f"{name} {count}" for name, count in tools.most_common(3))
        tokens = sum(rollout.tokens for rollout in rollouts)
        scoring = sum(rollout.scoring for rollout in rollouts)
        return (
            f"{len(rollouts)} in flight: {turns}, {tokens:,} tokens"
            + (f", last tools {last}" if last else "")
            + (f", {scoring} being scored" if scoring else "")
        )


def _turns(count: int) -> str:
    return f"{count} turn{'' if count == 1 else 's'}"

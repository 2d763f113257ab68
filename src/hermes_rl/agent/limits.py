"""Limits that end a rollout, and how much of a tool result the model is shown.

The deadline counts the policy's own time only (the tokens it sampled and the time its tools ran), so that a slow
endpoint or a queue never costs the policy anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

CHARACTERS_PER_TOKEN = 4
# Minimum room for an answer; with less there is no point in asking.
MIN_ANSWER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ResultBudget:
    """Limits on the characters of tool results: per result, per turn, per conversation, and of a preview.

    A tool in `overrides` has its own limit; None is no limit. `read_file` has none, since spilled results are read back
    with it; its result is truncated instead.
    """

    per_result: int = 100_000
    per_turn: int = 200_000
    per_context: int | None = None
    preview: int = 1_500
    overrides: Mapping[str, int | None] = field(default_factory=lambda: {"read_file": None})

    def limit_of(self, tool: str) -> int | None:
        return self.overrides.get(tool, self.per_result)

    def scaled_to(self, context_tokens: int | None) -> "ResultBudget":
        """At most a quarter of the context for one result, half for a turn, three quarters for all of them."""
        if context_tokens is None:
            return self
        room = context_tokens * CHARACTERS_PER_TOKEN
        return ResultBudget(
            per_result=min(self.per_result, room // 4),
            per_turn=min(self.per_turn, room // 2),
            per_context=min(self.per_context or room * 3 // 4, room * 3 // 4),
            preview=min(self.preview, room // 16),
            overrides={
                tool: None if limit is None else min(limit, room // 4) for tool, limit in self.overrides.items()
            },
        )


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Limits of one rollout; None is no limit."""

    max_tool_calls: int | None = None
    max_calls_per_turn: int = 64
    max_repeated_calls: int | None = 8
    deadline: float | None = None
    seconds_per_token: float = 0.02
    context_tokens: int | None = None
    tool_deadline: float = 900.0
    results: ResultBudget = field(default_factory=ResultBudget)

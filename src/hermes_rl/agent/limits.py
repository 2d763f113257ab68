"""What ends a rollout besides the model's own word, and how much of a tool's answer the model is shown.

All of it is a value. The deadline is counted on the policy's own clock (the tokens it sampled and the time its tools
ran), so a slow endpoint or a waiting queue never costs the policy anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

CHARACTERS_PER_TOKEN = 4
# Room that must be left for an answer; with less there is no point in asking.
LEAST_ANSWER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ResultBudget:
    """Characters of tool results: of one, of a turn's, of the whole conversation's, and of a preview.

    A tool in `overrides` has its own limit; None is no limit. `read_file` has none, since a spilled result is read back
    with it, and is cut short instead.
    """

    per_result: int = 100_000
    per_turn: int = 200_000
    per_context: int | None = None
    preview: int = 1_500
    overrides: Mapping[str, int | None] = field(default_factory=lambda: {"read_file": None})

    def limit_of(self, tool: str) -> int | None:
        return self.overrides.get(tool, self.per_result)

    def scaled_to(self, context_tokens: int | None) -> "ResultBudget":
        """Never more than a quarter of the context for one result, half for a turn, three quarters for all of them."""
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
    """Bounds of one rollout; None is no bound."""

    max_tool_calls: int | None = None
    max_calls_per_turn: int = 64
    max_repeated_calls: int | None = 8
    deadline: float | None = None
    seconds_per_token: float = 0.02
    context_tokens: int | None = None
    tool_deadline: float = 900.0
    results: ResultBudget = field(default_factory=ResultBudget)

"""AgentResult: what the loop hands to the reward, with the seeds' field names."""

from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core.errors import Failure
from hermes_rl.core.messages import Message, ToolCall, final_response, tool_calls, tools_used
from hermes_rl.core.trajectory import Reward, StopReason, Timing, ToolUse, Usage


@dataclass(frozen=True, slots=True)
class ToolError:
    """A failed tool call. `turn` counts from 1."""

    turn: int
    tool_name: str
    arguments: str
    error: str
    tool_result: str = ""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How an external agent program ended. If we ended it, `exit_code` is None and `ended_for` is the reason.

    `output` is what it wrote; a long output is cut to its beginning and end.
    """

    exit_code: int | None
    output: str
    seconds: float
    ended_for: StopReason | None = None


@dataclass
class AgentResult:
    """What the agent did in one rollout, as the reward sees it."""

    messages: list[Message]
    managed_state: dict[str, Any] | None = None
    turns_used: int = 0
    finished_naturally: bool = False
    reasoning_per_turn: list[str | None] = field(default_factory=list)
    tool_errors: list[ToolError] = field(default_factory=list)
    stop_reason: StopReason | None = None
    tool_uses: list[ToolUse] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    timings: list[Timing] = field(default_factory=list)
    prompt_length: int = 0
    reward: Reward | None = None
    compactions: int = 0
    program: ProgramEnd | None = None
    failure: Failure | None = None
    """What failed outside the policy, for code that runs an agent loop itself; our rollouts record it instead."""

    @property
    def final_response(self) -> str:
        """The text of the agent's last message with text; never that of a worked example in the prompt."""
        return final_response(self.messages[self.prompt_length :])

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Every call the agent made, without worked examples in the prompt."""
        return tool_calls(self.messages[self.prompt_length :])

    @property
    def tools_used(self) -> list[str]:
        """The names of the tools it called, without worked examples in the prompt."""
        return tools_used(self.messages[self.prompt_length :])

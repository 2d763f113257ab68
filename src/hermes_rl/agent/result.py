"""AgentResult: what the loop hands to the reward, with the seeds' field names."""

import math
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core.errors import Failure
from hermes_rl.core.messages import Message, ToolCall, final_response, tool_calls, tools_used
from hermes_rl.core.trajectory import Reward, StepReward, StopReason, Timing, ToolUse, Usage


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
    tool_schemas: list[dict[str, Any]] = field(default_factory=list)
    """The tools that an external agent offered the model in its main conversation; empty for our loop."""
    failure: Failure | None = None
    """What failed outside the policy, for code that runs an agent loop itself; our rollouts record it instead."""
    state: Any = None
    """The state of `initial_state`, as the agent's work left it."""
    end_reason: str | None = None
    """The reason given to `session.end()`, if the environment ended the rollout."""
    steps: list[StepReward] = field(default_factory=list)
    """What `session.reward()` gave, in order."""

    @property
    def step_reward(self) -> float:
        """The sum of the step rewards."""
        return math.fsum(step.value for step in self.steps)

    @property
    def step_rewards(self) -> list[float]:
        """The step rewards of each turn, summed: one number for each answer of the model, as in `Reward.turns`."""
        turns = [0.0] * self.turns_used
        for step in self.steps:
            turns[step.turn - 1] += step.value
        return turns

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

"""A policy that follows a script, one step a turn: oracles, cheats and the null agent of `validate` are such scripts.

It stands where the model's server stands, for the agent loop alone, so everything else about such a rollout is real:
the loop, the tools, the sandbox, the reward, and the model that a reward may ask.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Self, TypeAlias, cast

from hermes_rl import jsontext
from hermes_rl.agent.result import AgentResult
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.rollouts import Finished, RolloutPlan, run_rollout
from hermes_rl.environment.twins import evaluation_twin
from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.messages import Message, ToolCall
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.trajectory import Reward, Usage

ToolStep: TypeAlias = tuple[str, dict[str, Any]]
Step: TypeAlias = str | ToolStep | Sequence[ToolStep]
"""What is said at the end, one tool call as (name, arguments), or several calls of one turn."""
Reply: TypeAlias = Callable[[Sequence[Message]], Step]
"""A step that depends on the conversation so far."""
Scoring: TypeAlias = Callable[[Environment, Any, AgentResult, ToolContext], Awaitable[float | Reward]]

NAME = "script"


class ScriptedPolicy:
    """Plays a script once. After its last step it says nothing, which ends a rollout."""

    context_tokens: int | None = None

    def __init__(self, steps: Sequence[Step | Reply]) -> None:
        self.configs: list[APIServerConfig] = []
        self._left = iter(steps)

    def session(self) -> Self:
        """A script is one conversation."""
        return self

    async def chat_completion(self, messages: Sequence[Message], **parameters: Any) -> ChatCompletion:
        step = next(self._left, "")
        text, calls = spoken(step(messages) if callable(step) else step)
        said = ChatMessage("assistant", text, tuple(calls))
        return ChatCompletion("", NAME, (Choice(0, said, "tool_calls" if calls else "stop"),), Usage(0, 0))


def spoken(step: Step) -> tuple[str, list[ToolCall]]:
    """What a step says and the tools it calls; TypeError when it is no step."""
    if isinstance(step, str):
        return step, []
    calls = [step] if isinstance(step, tuple) and len(step) == 2 and isinstance(step[0], str) else step
    if not isinstance(calls, list | tuple) or not all(_is_call(call) for call in calls):
        raise TypeError(
            f"{step!r} is no step: give a text, a tool call as (name, {{arguments}}), or a list of such calls"
        )
    return "", [ToolCall.make(name, jsontext.dumps(arguments).decode()) for name, arguments in calls]


async def run_script(
    env: Environment,
    item: Any,
    steps: Sequence[Step | Reply],
    *,
    split: str = "train",
    scoring: Scoring | None = None,
) -> Finished:
    """The rollout of an agent that takes these steps, in an open environment whose buffers it does not touch.

    The agent has every tool the environment may give. `scoring` stands for `compute_reward`, and gets the environment
    besides.
    """
    tools = [tool for opened in env.tools.toolsets.values() for tool in opened.tools]
    plan = RolloutPlan(
        item=item,
        item_id=env.item_id(item),
        index=0,
        seed=env.config.seed,
        tool_schemas=[tool.schema for tool in tools],
        valid_tool_names={tool.name for tool in tools},
        temperature=0.0,
        split=split,
    )
    retries, tries = env.group_rules().retries, 0
    while True:
        tries += 1
        acted = _Acted(evaluation_twin(env), ScriptedPolicy(steps), scoring)
        finished = await run_rollout(cast("Environment", acted), plan)
        if not retries.again(finished.rollout.failure, tries):
            return finished


class _Acted:
    """An environment as the loop sees it: all is its own but the policy, which its own methods do not see.

    A reward may ask `self.server` for a judgement, and must not get a step of the script.
    """

    def __init__(self, env: Environment, policy: ScriptedPolicy, scoring: Scoring | None) -> None:
        self._env = env
        self.server = policy
        # A script has the tools of our loop, whatever the agent is.
        self.gateway = None
        if scoring is not None:
            self.compute_reward = partial(scoring, env)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def _is_call(call: object) -> bool:
    return isinstance(call, tuple) and len(call) == 2 and isinstance(call[0], str) and isinstance(call[1], dict)

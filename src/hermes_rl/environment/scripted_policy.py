"""A scripted policy, one step per turn, for the oracles, cheats and null agent of `validate`.

It replaces the model server for the agent loop only. Everything else in the rollout is real: the loop, tools, sandbox,
reward, and any model the reward uses.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeAlias, cast

from hermes_rl.agent.result import AgentResult
from hermes_rl.core import fast_json
from hermes_rl.core.author_code import describe_error
from hermes_rl.core.errors import ConfigError, EnvironmentCodeError
from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.core.trajectory import Reward, Usage
from hermes_rl.environment.eval_copy import copy_for_evaluation
from hermes_rl.environment.simulated_user import Dialogue
from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.audits import GroupAudits
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.rollout import FinishedRollout, RolloutPlan, run_rollout
from hermes_rl.rollout.seats import SeatedEnvironment, run_episode

ToolStep: TypeAlias = tuple[str, dict[str, Any]]
Turn: TypeAlias = str | ToolStep | Sequence[ToolStep]
Step: TypeAlias = Turn | Callable[[Sequence[Message]], Turn]
"""One turn: a text, one tool call as (name, arguments), several calls, or a function of the conversation so far.

In a game or a conversation a text is one answer of several; elsewhere it is the final one.
"""
Scoring: TypeAlias = Callable[[Environment, Any, AgentResult, ToolContext], Awaitable[float | Reward]]

MODEL_NAME = "script"
GO_ON = "Please go on."


class ScriptedPolicy:
    """Plays a script once. After the last step it returns empty text, which ends the rollout of a single answer.

    It also stands in for a simulated user without a model, who asks the agent to go on while there are steps.
    """

    context_tokens: int | None = None
    returns_tokens = False

    def __init__(self, steps: Sequence[Step]) -> None:
        self.configs: list[APIServerConfig] = []
        self._steps = deque(steps)

    def session(self) -> Self:
        return self

    async def chat_completion(self, messages: Sequence[Message], **parameters: Any) -> ChatCompletion:
        step = self._steps.popleft() if self._steps else ""
        text, calls = parse_step(_chosen(step, messages) if callable(step) else step)
        message = ChatMessage("assistant", text, tuple(calls))
        return ChatCompletion("", MODEL_NAME, (Choice(0, message, "tool_calls" if calls else "stop"),), Usage(0, 0))

    async def reply(self, _dialogue: Dialogue) -> str | None:
        return GO_ON if self._steps else None


def _chosen(step: Callable[[Sequence[Message]], Turn], messages: Sequence[Message]) -> Turn:
    try:
        turn = step(messages)
        parse_step(turn)
    except Exception as error:
        raise EnvironmentCodeError("script", f"a step of the script raised {describe_error(error)}") from error
    return turn


def parse_step(step: Turn) -> tuple[str, list[ToolCall]]:
    """The text and tool calls of a step; TypeError for anything else."""
    if isinstance(step, str):
        return step, []
    calls = [step] if isinstance(step, tuple) and len(step) == 2 and isinstance(step[0], str) else step
    if not isinstance(calls, list | tuple) or not all(_is_call(call) for call in calls):
        raise TypeError(
            f"{step!r} is not a step: give a text, a tool call as (name, {{arguments}}), or a list of such calls"
        )
    return "", [ToolCall.make(name, fast_json.dumps(arguments).decode()) for name, arguments in calls]


async def run_script(
    env: Environment,
    item: Any,
    steps: Sequence[Step],
    *,
    split: str = "train",
    scoring: Scoring | None = None,
    audits: GroupAudits | None = None,
) -> FinishedRollout:
    """Run a rollout that takes these steps in an open environment, without changing the environment's buffers.

    The agent has every tool of the environment. `scoring` replaces `compute_reward`; its first argument is the
    environment. `audits` says whether the rollout is audited; without it, it is not.
    """
    if env.seats:
        raise ConfigError(f"{env.display_name()} has several agents, and this check plays only one")
    plan = replace(_script_plan(env, item, split), audits=audits)
    retries, attempts = env.group_rules().retries, 0
    while True:
        attempts += 1
        duplicate, policy = copy_for_evaluation(env), ScriptedPolicy(steps)
        duplicate.stand_in_user = policy
        scripted = EnvironmentWithPolicy(duplicate, policy, scoring)
        finished = await run_rollout(cast("Environment", scripted), plan)
        if not retries.should_retry(finished.rollout.failure, attempts):
            return finished


async def run_seat_scripts(
    env: SeatedEnvironment, item: Any, scripts: Mapping[str, Sequence[Step]], *, split: str = "train"
) -> dict[str, FinishedRollout]:
    """Play an episode in which each seat takes its steps, one a turn; a seat without steps gives empty answers."""
    retries, attempts = env.group_rules().retries, 0
    while True:
        attempts += 1
        policies = {seat: ScriptedPolicy(scripts.get(seat, ())) for seat in env.seats}
        made = await run_episode(copy_for_evaluation(env), _script_plan(env, item, split), policies)
        if not retries.should_retry(next(iter(made.values())).rollout.failure, attempts):
            return made


def _script_plan(env: Environment, item: Any, split: str) -> RolloutPlan:
    tools = [tool for opened in env.tools.toolsets.values() for tool in opened.tools]
    return RolloutPlan(
        item=item,
        item_id=env.item_id(item),
        index=0,
        seed=env.config.seed,
        tool_schemas=[tool.schema for tool in tools],
        valid_tool_names={tool.name for tool in tools},
        temperature=0.0,
        split=split,
    )


class EnvironmentWithPolicy:
    """The environment with its policy replaced for the agent loop only.

    A reward that calls `self.server` must reach the real model and not the policy given here.
    """

    def __init__(self, env: Environment, policy: ScriptedPolicy, scoring: Scoring | None = None) -> None:
        self._env = env
        self.server = policy
        self.in_flight = env.in_flight
        # The policy uses our loop's tools, even if the environment has an external agent.
        self.gateway = None
        if scoring is not None:
            self.compute_reward = partial(scoring, env)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def _is_call(call: object) -> bool:
    return isinstance(call, tuple) and len(call) == 2 and isinstance(call[0], str) and isinstance(call[1], dict)

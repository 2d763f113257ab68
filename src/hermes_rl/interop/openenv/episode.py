"""An episode of one of our environments, played by a client: each of its actions is a turn of a rollout.

Always true: the rollout is one as any agent gets, with the environment's limits, sandbox and reward. Its failure is an
error for the client and never a reward. An episode that is closed leaves nothing behind.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.messages import Message
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.eval_copy import copy_for_evaluation
from hermes_rl.environment.scripted_policy import EnvironmentWithPolicy, ScriptedPolicy, Turn
from hermes_rl.inference.completion import ChatCompletion
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.group import plan_group
from hermes_rl.rollout.in_flight import RolloutsInFlight
from hermes_rl.rollout.rollout import RolloutPlan, run_rollout

ANSWER = "submit_answer"
OVER = "The episode is over."
ANSWER_TOOL = {
    "name": ANSWER,
    "description": "Give your answer, which ends the episode; in a conversation, say the next message to the user.",
    "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def check_playable(env: HermesAgentBaseEnv) -> None:
    """ConfigError for an environment whose rollouts cannot be played one by one by a client."""
    reason = None
    if env.seats:
        reason = "has several agents"
    elif env.makes_own_rollouts:
        reason = "makes its own rollouts"
    elif env.overrides("compute_group_rewards"):
        reason = "scores rollouts by comparing them with each other"
    elif env.config.external_agent:
        reason = "runs an agent of others: leave out agent_command and agent_url"
    if reason:
        raise ConfigError(f"{env.display_name()} {reason}, so a client cannot play it")
    if any(tool["name"] == ANSWER for tool in tools_of(env.group_tools()[0])):
        raise ConfigError(f"{env.display_name()} has a tool {ANSWER}, the name under which clients give their answer")


def tools_of(schemas: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tool schemas as OpenEnv lists them."""
    functions = [schema["function"] for schema in schemas]
    return [
        {"name": one["name"], "description": one.get("description", ""), "input_schema": one["parameters"]}
        for one in functions
    ]


class ClientPolicy(ScriptedPolicy):
    """Takes each turn from a client, when it comes."""

    def __init__(self) -> None:
        super().__init__(())
        self.asked = asyncio.Event()
        self._turns: asyncio.Queue[Turn] = asyncio.Queue()

    def give(self, turn: Turn) -> None:
        self.asked.clear()
        self._turns.put_nowait(turn)

    async def chat_completion(self, messages: Sequence[Message], **parameters: Any) -> ChatCompletion:
        self.asked.set()
        self._steps.append(await self._turns.get())
        return await super().chat_completion(messages, **parameters)


class Episode:
    """Use `begin` to make one, and `close` it."""

    def __init__(self, env: HermesAgentBaseEnv, plan: RolloutPlan) -> None:
        self.item_id, self.tools = plan.item_id, [*tools_of(plan.tool_schemas), ANSWER_TOOL]
        self.steps = 0
        self._policy, self._in_flight = ClientPolicy(), RolloutsInFlight()
        played = EnvironmentWithPolicy(copy_for_evaluation(cast("Environment", env)), self._policy)
        played.in_flight = self._in_flight
        self._rollout = asyncio.create_task(run_rollout(cast("Environment", played), plan))
        self._result: AgentResult | None = None
        self._acting = asyncio.Lock()

    @classmethod
    async def begin(cls, env: HermesAgentBaseEnv, item: Any, number: int, split: str) -> "Episode":
        """An episode that waits for its first action; equal numbers give equal seeds and tools."""
        plan = plan_group(cast("Environment", env), item, size=1, split=split, draw=number).rollout(0)
        episode = cls(env, plan)
        try:
            await episode._wait()
        except asyncio.CancelledError:
            await episode.close()
            raise
        return episode

    @property
    def result(self) -> AgentResult:
        if self._result is None:
            live = self._in_flight.oldest(1)
            self._result = live[0].result if live else self._rollout.result().result
        return self._result

    @property
    def over(self) -> bool:
        return self._rollout.done()

    @property
    def score(self) -> float | None:
        """The score of an episode that is over; the failure is raised if it has none."""
        if not self.over:
            return None
        finished = self._rollout.result()
        if finished.rollout.failure is not None:
            raise HermesRLError(f"{finished.rollout.failure}: {finished.rollout.failure.message}")
        return finished.rollout.score

    async def act(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Take a turn: what the tool, or the user, answered, and whether that is an error."""
        async with self._acting:
            if self.over:
                return OVER, False
            uses, told = len(self.result.tool_uses), len(self.result.messages)
            self._policy.give(str(arguments.get("text", "")) if name == ANSWER else (name, dict(arguments)))
            self.steps += 1
            await self._wait()
            if len(self.result.tool_uses) > uses:
                last = self.result.tool_uses[-1]
                return str(self.result.messages[-1]["content"]), last.error is not None
            said = [message for message in self.result.messages[told:] if message["role"] == "user"]
            return (str(said[-1]["content"]) if said else OVER), False

    async def _wait(self) -> None:
        """Until the rollout wants the next turn, or is over."""
        asked = asyncio.create_task(self._policy.asked.wait())
        try:
            await asyncio.wait((asked, self._rollout), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()

    async def close(self) -> None:
        self._rollout.cancel()
        await asyncio.wait((self._rollout,))

"""Doing a recorded rollout again without its model: the same tool calls in a fresh sandbox, then the reward.

Only calls that act in the sandbox are carried out, one after the other; a search or a browser visit would ask the world
again and leave nothing behind to score. Answers that differ from the recorded ones are told, not hidden.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any, NamedTuple
from uuid import uuid4

from hermes_rl import jsontext
from hermes_rl.agent.loop import NOT_RUN
from hermes_rl.agent.result import AgentResult, ProgramEnd, ToolError
from hermes_rl.agent.spilling import Result, within_budget
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.rollouts import agent_limits, spec_for
from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.tools.session import ToolOutcome, ToolSession
from hermes_rl.trajectory import Rollout, StopReason, ToolUse


class Replayed(NamedTuple):
    """A recorded call, and the answer it got this time; None when it was not carried out."""

    use: ToolUse
    answer: str | None

    @property
    def differs(self) -> bool:
        return self.answer is not None and self.answer != self.use.result


class LockedPool(SandboxPool):
    """Gives no sandbox, and tells whether one was asked for."""

    def __init__(self, pool: SandboxPool) -> None:
        super().__init__(pool.backend)
        self.asked_for = False

    async def acquire(self, spec: SandboxSpec | None = None, *, verifying: bool = False) -> Sandbox:
        self.asked_for = True
        raise SandboxError("locked", "the transcript is being scored alone; there is no sandbox to look into")


@asynccontextmanager
async def fresh_session(env: Environment, item: Any) -> AsyncIterator[ToolSession]:
    """A session with the item's machine, closed at the end with all that is in it."""
    task_id = str(uuid4())
    session = env.tools.session(task_id)
    try:
        session.spec = spec_for(env, item)
        yield session
    finally:
        await env.tools.close_session(task_id)


async def replay_calls(
    env: Environment, rollout: Rollout, tools: Sequence[str], session: ToolSession
) -> AsyncIterator[Replayed]:
    """Carry the rollout's calls out again in `session`, in their recorded order."""
    if "program" in rollout.metadata:
        raise SandboxError(
            "program",
            "the agent was a program, whose tools are its own and cannot be called again; a reward that looks at the "
            "conversation alone can be had with --from transcript",
        )
    budget = agent_limits(env.config, None).results
    spent = 0
    for turn, uses in groupby(rollout.tool_uses, lambda use: use.turn):
        results: list[Result] = []
        for use in uses:
            answer = await _again(session, use, tools)
            results.append(Result(use.name, ToolOutcome(use.result if answer is None else answer, use.error)))
            yield Replayed(use, answer)
        # A result too long for the model went to a file, which the policy may have read or changed.
        shown = await within_budget(results, spent=spent, budget=budget, session=session, tools=set(tools), turn=turn)
        spent += sum(len(outcome.text) for outcome in shown)


def recorded_result(rollout: Rollout) -> AgentResult:
    """What the reward was given when the rollout was made, from its record."""
    prompt_length = int(rollout.metadata.get("prompt_length", 0))
    said = [message for message in rollout.messages[prompt_length:] if message.get("role") == "assistant"]
    return AgentResult(
        messages=list(rollout.messages),
        turns_used=rollout.turns_used,
        finished_naturally=rollout.stop_reason is StopReason.NATURAL,
        reasoning_per_turn=[message.get("reasoning_content") for message in said],
        tool_errors=[
            ToolError(use.turn, use.name, use.arguments, use.error, use.result)
            for use in rollout.tool_uses
            if use.error is not None
        ],
        stop_reason=rollout.stop_reason,
        tool_uses=list(rollout.tool_uses),
        usage=rollout.usage,
        timings=list(rollout.timings),
        prompt_length=prompt_length,
        program=ProgramEnd(**rollout.metadata["program"]) if "program" in rollout.metadata else None,
    )


async def _again(session: ToolSession, use: ToolUse, tools: Sequence[str]) -> str | None:
    tool = session.tools.get(use.name)
    refused = use.name not in tools or (use.error or "").startswith(NOT_RUN)
    if tool is None or refused or not tool.sandboxed:
        return None
    try:
        arguments = jsontext.loads(use.arguments) if use.arguments.strip() else {}
    except ValueError:
        return None
    return (await session.call(use.name, arguments)).text if isinstance(arguments, dict) else None

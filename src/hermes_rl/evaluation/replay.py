"""Replay a recorded rollout without its model: the same tool calls in a fresh sandbox, then the reward.

Only calls that act in the sandbox are replayed, one after the other: a search or a browser visit leaves nothing in the
sandbox to score. Results that differ from the recorded ones are reported.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any, NamedTuple
from uuid import uuid4

from hermes_rl.agent.loop import NOT_RUN
from hermes_rl.agent.result import AgentResult, ProgramEnd, ToolError
from hermes_rl.agent.result_spilling import ToolResult, fit_to_budget
from hermes_rl.core import fast_json
from hermes_rl.core.errors import SandboxError
from hermes_rl.core.trajectory import Rollout, StopReason, ToolUse
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.rollout import agent_limits, spec_for
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.tools.session import ToolOutcome, ToolSession


class ReplayedCall(NamedTuple):
    """A recorded call and its result in the replay; None when it was not replayed."""

    use: ToolUse
    answer: str | None

    @property
    def differs(self) -> bool:
        return self.answer is not None and self.answer != self.use.result


class LockedPool(SandboxPool):
    """Refuses to give a sandbox, and records whether one was requested."""

    def __init__(self, pool: SandboxPool) -> None:
        super().__init__(pool.backend)
        self.was_requested = False

    async def acquire(self, spec: SandboxSpec | None = None, *, verifying: bool = False) -> Sandbox:
        self.was_requested = True
        raise SandboxError("locked", "only the transcript is being scored; there is no sandbox")


@asynccontextmanager
async def fresh_session(env: Environment, item: Any) -> AsyncIterator[ToolSession]:
    """A tool session with the item's sandbox spec, closed at the end."""
    task_id = str(uuid4())
    session = env.tools.session(task_id)
    try:
        session.spec = spec_for(env, item)
        yield session
    finally:
        await env.tools.close_session(task_id)


async def replay_calls(
    env: Environment, rollout: Rollout, tools: Sequence[str], session: ToolSession
) -> AsyncIterator[ReplayedCall]:
    """Replay the rollout's calls in `session`, in their recorded order."""
    if "program" in rollout.metadata:
        raise SandboxError(
            "program",
            "the agent was an external program, and its tool calls cannot be replayed; use --from transcript for a "
            "reward that reads only the conversation",
        )
    budget = agent_limits(env.config, None).results
    spent = 0
    for turn, uses in groupby(rollout.tool_uses, lambda use: use.turn):
        results: list[ToolResult] = []
        for use in uses:
            answer = await _repeat_call(session, use, tools)
            results.append(ToolResult(use.name, ToolOutcome(use.result if answer is None else answer, use.error)))
            yield ReplayedCall(use, answer)
        # A result too long for the model goes to a file, which the policy may have read or changed.
        shown = await fit_to_budget(results, spent=spent, budget=budget, session=session, tools=set(tools), turn=turn)
        spent += sum(len(outcome.text) for outcome in shown)


def recorded_result(rollout: Rollout) -> AgentResult:
    """The AgentResult that the reward got originally, rebuilt from the record."""
    prompt_length = int(rollout.metadata.get("prompt_length", 0))
    replies = [message for message in rollout.messages[prompt_length:] if message.get("role") == "assistant"]
    return AgentResult(
        messages=list(rollout.messages),
        turns_used=rollout.turns_used,
        finished_naturally=rollout.stop_reason is StopReason.NATURAL,
        reasoning_per_turn=[message.get("reasoning_content") for message in replies],
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


async def _repeat_call(session: ToolSession, use: ToolUse, tools: Sequence[str]) -> str | None:
    tool = session.tools.get(use.name)
    refused = use.name not in tools or (use.error or "").startswith(NOT_RUN)
    if tool is None or refused or not tool.sandboxed:
        return None
    try:
        arguments = fast_json.loads(use.arguments) if use.arguments.strip() else {}
    except ValueError:
        return None
    return (await session.call(use.name, arguments)).text if isinstance(arguments, dict) else None

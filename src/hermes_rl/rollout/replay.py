"""Replay a recorded rollout without its model: the same tool calls in a fresh sandbox, then the reward.

Only calls that act in the sandbox or on the environment's state are replayed, one after the other: a search or a
browser visit leaves nothing to score. The environment's own `next_user_message` is called again, since it may change
the state; a simulated user is not asked, what it said is in the record. Results that differ from the recorded ones are
reported.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any, NamedTuple
from uuid import uuid4

from hermes_rl.agent.loop import NOT_RUN
from hermes_rl.agent.result import AgentResult, ProgramEnd, ToolError
from hermes_rl.agent.result_spilling import ToolResult, fit_to_budget
from hermes_rl.core import fast_json
from hermes_rl.core.errors import SandboxError
from hermes_rl.core.messages import content_text
from hermes_rl.core.trajectory import Rollout, StepReward, StopReason, ToolUse
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.external.artifacts import restore_artifacts
from hermes_rl.rollout.rollout import agent_limits, begin_session, next_user_message
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

    def __init__(self) -> None:
        super().__init__()
        self.was_requested = False

    async def acquire(self, spec: SandboxSpec | None = None, *, verifying: bool = False) -> Sandbox:
        self.was_requested = True
        raise SandboxError("locked", "only the transcript is being scored; there is no sandbox")


@asynccontextmanager
async def fresh_session(env: Environment, item: Any, seed: int) -> AsyncIterator[ToolSession]:
    """A tool session as a rollout of the item with this seed begins, closed at the end."""
    task_id = str(uuid4())
    session = env.tools.session(task_id)
    try:
        await begin_session(env, session, item, seed)
        yield session
    finally:
        await env.tools.close_session(task_id)


async def replay_calls(
    env: Environment, rollout: Rollout, tools: Sequence[str], session: ToolSession
) -> AsyncIterator[ReplayedCall]:
    """Replay the rollout's calls in `session`, in their recorded order; or put back what an external agent left."""
    if "program" in rollout.metadata:
        await restore_artifacts(session, rollout, env.artifacts_folder)
        return
    budget = agent_limits(env.config, None).results
    spent, done = 0, 0
    replies = deque(_replies(rollout) if session.stateful and env.overrides("next_user_message") else ())
    for turn, uses in groupby(rollout.tool_uses, lambda use: use.turn):
        while replies and replies[0].uses_before <= done:
            yield await _repeat_reply(env, rollout, replies.popleft(), session)
        results: list[ToolResult] = []
        session.turn = turn
        for use in uses:
            answer = await _repeat_call(session, use, tools)
            results.append(ToolResult(use.name, ToolOutcome(use.result if answer is None else answer, use.error)))
            done += 1
            yield ReplayedCall(use, answer)
        # A result too long for the model goes to a file, which the policy may have read or changed.
        shown = await fit_to_budget(results, spent=spent, budget=budget, session=session, tools=set(tools), turn=turn)
        spent += sum(len(outcome.text) for outcome in shown)
    for reply in replies:
        yield await _repeat_reply(env, rollout, reply, session)


def take_step_rewards(env: Environment, session: ToolSession, result: AgentResult) -> None:
    """Replace the recorded step rewards by those of the replay, if it repeated everything that gives any."""
    if session.stateful and not env.overrides("next_user_message"):
        result.steps, result.end_reason = session.steps, session.end_reason


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
        steps=[StepReward(**step) for step in rollout.metadata.get("step_rewards", ())],
        end_reason=rollout.metadata.get("end_reason"),
        program=ProgramEnd(**rollout.metadata["program"]) if "program" in rollout.metadata else None,
    )


class _Reply(NamedTuple):
    """A turn of the user: the message index of the answer before it, the turn, and the tool uses before it.

    `words` is None where the conversation ended.
    """

    answer: int
    turn: int
    uses_before: int
    words: str | None


def _replies(rollout: Rollout) -> Iterator[_Reply]:
    """Where the loop asked `next_user_message`: after each answer without a call, unless that was cut off."""
    messages = rollout.messages
    turn, uses = 0, 0
    for index in range(int(rollout.metadata.get("prompt_length", 0)), len(messages)):
        role = messages[index].get("role")
        turn, uses = turn + (role == "assistant"), uses + (role == "tool")
        if role != "assistant" or messages[index].get("tool_calls"):
            continue
        following = messages[index + 1] if index + 1 < len(messages) else None
        if following is not None and following.get("role") == "user":
            yield _Reply(index, turn, uses, content_text(following.get("content")))
        elif following is None and rollout.stop_reason in (StopReason.NATURAL, StopReason.ENDED):
            yield _Reply(index, turn, uses, None)


async def _repeat_reply(env: Environment, rollout: Rollout, reply: _Reply, session: ToolSession) -> ReplayedCall:
    session.turn, session.replayed_reply = reply.turn, (reply.words,)
    said = await next_user_message(env, session, list(rollout.messages[: reply.answer + 1]))
    return ReplayedCall(ToolUse(reply.turn, "", "next_user_message", "", reply.words or ""), said or "")


async def _repeat_call(session: ToolSession, use: ToolUse, tools: Sequence[str]) -> str | None:
    tool = session.tools.get(use.name)
    refused = use.name not in tools or (use.error or "").startswith(NOT_RUN)
    if tool is None or refused or not (tool.sandboxed or (session.stateful and use.name in session.own_tools)):
        return None
    try:
        arguments = fast_json.loads(use.arguments) if use.arguments.strip() else {}
    except ValueError:
        return None
    return (await session.call(use.name, arguments)).text if isinstance(arguments, dict) else None

"""Rebuild the sandbox and the state of a recorded rollout at a turn, by replaying its calls in a new session.

Always true: every replayed result, and the recorded state, equal the record, except for what an environment declares
in `replay_noise`; else EnvironmentCodeError.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hermes_rl.agent.result import AgentResult
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, EnvironmentCodeError
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Rollout
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.replay import recorded_result, replay_calls
from hermes_rl.tools.session import ToolSession

SHOWN = 300


def past_turns(rollout: Rollout, turn: int, edit: str | None = None) -> AgentResult:
    """The work before the model's answer number `turn`, as the agent loop leaves it."""
    whole = recorded_result(rollout)
    messages = _messages_before(rollout, whole.prompt_length, turn)
    if edit is not None:
        messages[-1] = {**messages[-1], "content": edit}
    return AgentResult(
        messages=messages,
        turns_used=turn - 1,
        reasoning_per_turn=whole.reasoning_per_turn[: turn - 1],
        tool_errors=[error for error in whole.tool_errors if error.turn < turn],
        tool_uses=[use for use in rollout.tool_uses if use.turn < turn],
        prompt_length=whole.prompt_length,
    )


async def rebuild(
    env: Environment, recorded: Rollout, tools: Sequence[str], past: AgentResult, session: ToolSession
) -> None:
    """Bring a new session to where the past turns left the recorded one; EnvironmentCodeError at a difference."""
    # As recorded, also where `past` has an edit: what the environment answers is compared with its own record.
    messages = recorded.messages[: len(past.messages)]
    before = replace(recorded, messages=messages, tool_uses=tuple(past.tool_uses), turns_used=past.turns_used)
    async for call in replay_calls(env, before, tools, session):
        if call.answer is None:
            continue
        name = f"turn {call.use.turn}, {call.use.name}({call.use.arguments[:SHOWN]})"
        _refuse_difference(env, name, call.use.result, call.answer)
        session.note_state()
    session.turn = past.turns_used
    session.note_state()
    states = _states([(state.turn, state.value) for state in recorded.states], past.turns_used)
    rebuilt = _states([(state.turn, state.value) for state in session.states()], past.turns_used)
    if recorded.states and past.turns_used:
        _refuse_difference(env, "the state", states, rebuilt)
    # What was replayed took no time of the new rollout's, and the user speaks for itself again.
    session.timings.clear()
    session.replayed_reply = None
    if user := recorded.metadata.get("user"):
        session.metadata["user"] = {"first_message": user["first_message"]}


def _refuse_difference(env: Environment, name: str, recorded: str, now: str) -> None:
    """EnvironmentCodeError if they differ by more than `replay_noise`."""
    plain = [recorded, now]
    for pattern in map(re.compile, env.replay_noise):
        plain = [pattern.sub("", text) for text in plain]
    if plain[0] != plain[1]:
        raise EnvironmentCodeError(
            "replay",
            f"the rollout cannot be forked, because a replay differs: {name}: recorded {_excerpt(recorded, now)}, now "
            f"{_excerpt(now, recorded)}. Declare what changes by nature as patterns in replay_noise",
        )


def _states(states: Sequence[tuple[int, Any]], turn: int) -> str:
    """The last state at or before this turn."""
    last = [value for at, value in states if at <= turn][-1:]
    return fast_json.dumps(last[0]).decode() if last else ""


def _messages_before(rollout: Rollout, prompt_length: int, turn: int) -> list[Message]:
    answers = 0
    for index, message in enumerate(rollout.messages):
        if index >= prompt_length and message.get("role") == "assistant":
            answers += 1
            if answers == turn:
                return list(rollout.messages[:index])
    raise ConfigError(f"--turn {turn}: the rollout has turns 1 to {answers}")


def _excerpt(text: str, other: str) -> str:
    """The part of the text around its first difference to the other."""
    at = next(
        (index for index, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other))
    )
    begin = max(at - SHOWN // 3, 0)
    return repr(("…" if begin else "") + text[begin : begin + SHOWN])

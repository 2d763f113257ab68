"""Replays recorded episodes of several agents: each seat gives its recorded answers again, everything else runs anew.

Tools, state, turn order and reward are the environment's of now; no model is asked.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, cast

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.core.trajectory import Rollout, StopReason, Usage
from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.replay import ReplayedCall
from hermes_rl.rollout.rollout import RolloutPlan
from hermes_rl.rollout.seats import FROZEN, SeatedEnvironment, run_episode
from hermes_rl.store.records import rollout_from_record

# What ended an answer, for the agent loop.
FINISH = {
    StopReason.LENGTH: "length",
    StopReason.CONTEXT_FULL: "context_full",
    StopReason.CONTENT_FILTER: "content_filter",
}


class RecordedAnswers:
    """A seat's recorded answers in order; after the last it stops."""

    def __init__(self, rollout: Rollout | None) -> None:
        work = rollout.messages[int(rollout.metadata.get("prompt_length", 0)) :] if rollout else []
        self._answers = [message for message in work if message.get("role") == "assistant"]
        self._last = FINISH.get(rollout.stop_reason, "stop") if rollout and rollout.stop_reason else "stop"

    async def chat_completion(self, messages: Sequence[Message], **parameters: Any) -> ChatCompletion:
        if not self._answers:
            return _completion(ChatMessage("assistant", ""), "length")
        answer = self._answers.pop(0)
        calls = tuple(ToolCall.from_raw(call) for call in answer.get("tool_calls") or ())
        message = ChatMessage("assistant", answer.get("content"), calls, answer.get("reasoning_content"))
        return _completion(message, "stop" if self._answers else self._last)


def _completion(message: ChatMessage, finish: str) -> ChatCompletion:
    return ChatCompletion("", "recorded", (Choice(0, message, finish),), Usage())


def episodes(rollouts: Iterable[Rollout]) -> dict[str, dict[str, Rollout]]:
    """The rollouts of each episode by seat, those of frozen seats included."""
    found: dict[str, dict[str, Rollout]] = {}
    for rollout in rollouts:
        if rollout.seat is None:
            raise ConfigError(
                f"a rollout of item {rollout.item_id} has no seat: its environment had a single agent "
                "when it was recorded"
            )
        frozen = {seat: rollout_from_record(record) for seat, record in rollout.metadata.get(FROZEN, {}).items()}
        found.setdefault(str(rollout.metadata.get("episode")), {}).update({rollout.seat: rollout, **frozen})
    return found


async def replay_episode(
    env: Environment, item: Any, recorded: Mapping[str, Rollout], tools: Iterable[str]
) -> dict[str, Rollout]:
    """The rollouts of the episode as it goes now, by seat."""
    first = next(iter(recorded.values()))
    chosen = [tool for name, tool in env.tools.tools.items() if name in set(tools)]
    plan = RolloutPlan(
        item=item,
        item_id=first.item_id,
        index=first.index,
        seed=first.seed,
        tool_schemas=[tool.schema for tool in chosen],
        valid_tool_names={tool.name for tool in chosen},
        temperature=0.0,
        split="train",
    )
    answers = {seat: RecordedAnswers(recorded.get(seat)) for seat in env.seats}
    made = await run_episode(cast("SeatedEnvironment", env), plan, answers)
    return {seat: finished.rollout for seat, finished in made.items()}


def replayed_calls(recorded: Rollout, replayed: Rollout) -> Iterator[ReplayedCall]:
    """Each recorded call with its result in the replay."""
    for old, new in zip_longest(recorded.tool_uses, replayed.tool_uses[: len(recorded.tool_uses)]):
        yield ReplayedCall(old, None if new is None else new.result)

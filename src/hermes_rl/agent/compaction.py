"""Compaction: what to do with a conversation that outgrows the model's context.

A strategy gives a shorter conversation to go on with, or None when it cannot; then the rollout ends as context_full.
What was said stays in the record whole; only what the model is sent gets shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hermes_rl.agent.limits import CHARACTERS_PER_TOKEN
from hermes_rl.messages import Message, content_text


class Compaction(Protocol):
    async def compact(self, messages: Sequence[Message], room: int) -> list[Message] | None:
        """A conversation of about `room` tokens at most that carries on from this one."""
        ...


@dataclass(frozen=True, slots=True)
class DropOldResults:
    """Replace all tool results but the latest `keep` by a note.

    Results are most of a long conversation and the part an agent can get again; its own words are never touched. All go
    at once, since each compaction costs the engine its prefix cache and begins a new sequence.
    """

    keep: int = 3
    note: str = "(dropped to save room; call again if needed)"

    async def compact(self, messages: Sequence[Message], room: int) -> list[Message] | None:
        results = [place for place, message in enumerate(messages) if message.get("role") == "tool"]
        old = set(results[: len(results) - self.keep])
        shorter = [
            {**message, "content": self.note} if place in old else message for place, message in enumerate(messages)
        ]
        return shorter if tokens_in(shorter) <= room else None


def tokens_in(messages: Sequence[Message]) -> int:
    """About how many tokens messages take; only for deciding, never for training."""
    return (
        sum(
            len(content_text(message.get("content"))) + len(str(message.get("tool_calls") or ""))
            for message in messages
        )
        // CHARACTERS_PER_TOKEN
    )

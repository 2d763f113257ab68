"""Compaction: shortens a conversation that outgrows the model's context.

A strategy returns a shorter conversation to continue with, or None if it cannot; the rollout then ends as context_full.
The record keeps the full conversation; only what is sent to the model gets shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hermes_rl.agent.limits import CHARACTERS_PER_TOKEN
from hermes_rl.core.messages import Message, content_text


class Compaction(Protocol):
    async def compact(self, messages: Sequence[Message], room: int) -> list[Message] | None:
        """A conversation of at most about `room` tokens that continues this one."""
        ...


@dataclass(frozen=True, slots=True)
class DropOldResults:
    """Replace all tool results except the latest `keep` with a note.

    Results are most of a long conversation, and an agent can get them again; its own messages are never changed. All
    are replaced at once, since each compaction loses the engine's prefix cache and starts a new sequence.
    """

    keep: int = 3
    note: str = "(dropped to save room; call again if needed)"

    async def compact(self, messages: Sequence[Message], room: int) -> list[Message] | None:
        results = [index for index, message in enumerate(messages) if message.get("role") == "tool"]
        old = set(results[: len(results) - self.keep])
        shorter = [
            {**message, "content": self.note} if index in old else message for index, message in enumerate(messages)
        ]
        return shorter if estimate_tokens(shorter) <= room else None


def estimate_tokens(messages: Sequence[Message]) -> int:
    """Estimated tokens of messages; for decisions only, never for training."""
    return (
        sum(
            len(content_text(message.get("content"))) + len(str(message.get("tool_calls") or ""))
            for message in messages
        )
        // CHARACTERS_PER_TOKEN
    )

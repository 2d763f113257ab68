"""Earlier answers of one rollout, for agents that name an answer instead of sending it back.

Always true: it holds the latest answers only, and a message that several of them have in common once.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hermes_rl.gateway.asked import Asked, Told
from hermes_rl.gateway.dialects.said import Said, mark
from hermes_rl.messages import Message, ToolCall

KEPT_ANSWERS = 512


class Kept(NamedTuple):
    """A conversation that ends with an answer."""

    messages: Sequence[Message]

    @property
    def answer(self) -> Message:
        return self.messages[-1]


class Earlier:
    """One a rollout: `dialect.asked(body, earlier)` reads it, `keep` is called with every answer given."""

    def __init__(self, most: int = KEPT_ANSWERS) -> None:
        self._most = most
        self._answers: dict[str, Kept] = {}

    def keep(self, asked: Asked, told: Told) -> None:
        if not asked.keep or not told.choices:
            return
        messages = [*asked.messages[asked.begin :], Said.of(asked, told.choices[0]).message]
        before = next(reversed(self._answers.values())).messages if self._answers else ()
        shared = [old if old == new else new for new, old in zip(messages, before, strict=False)]
        self._answers[mark(told)] = Kept(shared + messages[len(shared) :])
        while len(self._answers) > self._most:
            del self._answers[next(iter(self._answers))]

    def find(self, answer: str) -> Kept | None:
        """The answer whose ids have this mark."""
        return self._answers.get(answer)

    def call_id(self, before: Sequence[Message], name: str, arguments: str) -> str | None:
        """The id of a call that an agent sends back without it: the one answered to these very messages."""
        for kept in self._answers.values():
            if len(kept.messages) == len(before) + 1 and list(kept.messages[:-1]) == before:
                for call in map(ToolCall.of, kept.answer.get("tool_calls") or ()):
                    if (call.name, call.arguments) == (name, arguments):
                        return call.id
        return None

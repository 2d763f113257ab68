"""The dialects that agents speak to model providers, each to our own words and back.

Always true of a dialect: it is pure. What `asked` reads of an answer that an agent sends back is the message that was
answered; whatever it cannot read is a BadRequestError.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from hermes_rl.gateway.asked import Asked, Told
from hermes_rl.gateway.dialects.anthropic import Anthropic
from hermes_rl.gateway.dialects.chat import Chat
from hermes_rl.gateway.dialects.earlier import Earlier
from hermes_rl.gateway.dialects.responses import Responses
from hermes_rl.gateway.problems import Problem

__all__ = ["ANTHROPIC", "CHAT", "DIALECTS", "RESPONSES", "Dialect", "Earlier"]


class Dialect(Protocol):
    name: str
    path: str

    def key(self, headers: Mapping[str, str]) -> str | None:
        """The key in a request's headers, whose names are in small letters."""
        ...

    def asked(self, body: Any, earlier: Earlier | None = None) -> Asked:
        """A request's body, as JSON gave it. `earlier` knows the answers that it may name."""
        ...

    def answer(self, asked: Asked, told: Told) -> dict[str, Any]: ...

    def events(self, asked: Asked, told: Told) -> Iterator[bytes]:
        """The same answer as a whole stream."""
        ...

    def refusal(self, problem: Problem) -> tuple[int, dict[str, Any]]:
        """The status and body of an answer that says no."""
        ...

    def interruption(self, problem: Problem) -> bytes:
        """The last event of a stream that had begun when the problem arose."""
        ...

    def ping(self) -> bytes:
        """An event without meaning, for a stream that would seem dead."""
        ...


CHAT = Chat()
RESPONSES = Responses()
ANTHROPIC = Anthropic()
DIALECTS: tuple[Dialect, ...] = (CHAT, RESPONSES, ANTHROPIC)

"""The API dialects that agents use, each translated to and from one common form.

A dialect is pure. `parse_request` reads an answer that an agent sends back as the message that was answered; what it
cannot parse is a BadRequestError.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from hermes_rl.gateway.dialects.anthropic import Anthropic
from hermes_rl.gateway.dialects.chat import Chat
from hermes_rl.gateway.dialects.google import Google
from hermes_rl.gateway.dialects.previous_responses import PreviousResponses
from hermes_rl.gateway.dialects.responses import Responses
from hermes_rl.gateway.errors import RequestProblem
from hermes_rl.gateway.request import AgentRequest
from hermes_rl.inference.completion import ChatCompletion

__all__ = ["ANTHROPIC", "CHAT", "DIALECTS", "GOOGLE", "RESPONSES", "Dialect", "PreviousResponses"]


class Dialect(Protocol):
    name: str
    path: str
    """How the paths of its requests begin."""

    def match(self, path: str) -> Mapping[str, Any] | None:
        """What a path of this dialect adds to the body; None for any other path."""
        ...

    def key(self, headers: Mapping[str, str]) -> str | None:
        """The API key in a request's headers, whose names are in lower case."""
        ...

    def parse_request(self, body: Any, previous: PreviousResponses | None = None) -> AgentRequest:
        """Parse a request's decoded body. `previous` holds the answers that it may refer to."""
        ...

    def answer(self, request: AgentRequest, completion: ChatCompletion) -> dict[str, Any]: ...

    def events(self, request: AgentRequest, completion: ChatCompletion) -> Iterator[bytes]:
        """The same answer as a complete event stream."""
        ...

    def refusal(self, problem: RequestProblem) -> tuple[int, dict[str, Any]]:
        """The status and body of an error response."""
        ...

    def interruption(self, problem: RequestProblem) -> bytes:
        """The last event of a stream that had started when the problem occurred."""
        ...

    def ping(self) -> bytes:
        """An event without content, which keeps a waiting stream alive."""
        ...


CHAT = Chat()
RESPONSES = Responses()
ANTHROPIC = Anthropic()
GOOGLE = Google()
DIALECTS: tuple[Dialect, ...] = (CHAT, RESPONSES, ANTHROPIC, GOOGLE)

"""What an agent asked for, in our own words, whichever dialect it spoke; and what it is told.

Always true: `messages` and `tools` hold all that reaches the policy's prompt, in the one form that the recorder knows.
Two requests that say the same in two dialects have the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hermes_rl.errors import HermesRLError
from hermes_rl.inference.completion import ChatCompletion
from hermes_rl.messages import Message

Told: TypeAlias = ChatCompletion


class BadRequestError(HermesRLError):
    """A request that its provider would refuse, or that cannot be answered here. `param` is the field to blame."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    def under(self, place: str) -> "BadRequestError":
        """The same of a field within another."""
        return BadRequestError(str(self), f"{place}.{self.param}" if self.param else place)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for an answer. `tools` are in OpenAI's function form. Of sampling, only lengths are here.

    `tool_choice` is in OpenAI's form. `want_usage`: a stream is to end with the count of tokens. `show_thinking`: the
    agent takes thinking as a part of the answer. `keep`: it may name this answer later instead of sending it back, and
    then goes on from `messages[begin:]`. `echo` holds what the dialect itself needs again for the answer.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    stream: bool = False
    model: str = ""
    want_usage: bool = True
    tool_choice: str | dict[str, Any] | None = None
    stop: list[str] = field(default_factory=list)
    n: int = 1
    max_tokens: int | None = None
    show_thinking: bool = True
    keep: bool = False
    begin: int = 0
    echo: Mapping[str, Any] = field(default_factory=dict, compare=False)

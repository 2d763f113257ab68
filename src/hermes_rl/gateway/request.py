"""An agent's request in one form for all dialects.

`messages` and `tools` hold everything that reaches the policy's prompt, in the form that the recorder uses. Equal
requests in two dialects have equal messages and tools.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core.errors import HermesRLError
from hermes_rl.core.messages import Message


class BadRequestError(HermesRLError):
    """A request that the provider would refuse, or that is not supported here. `param` is the invalid field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    def under(self, parent: str) -> "BadRequestError":
        """The same error for a field inside `parent`."""
        return BadRequestError(str(self), f"{parent}.{self.param}" if self.param else parent)


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One request for an answer. `tools` and `tool_choice` have OpenAI's format. The only sampling fields are lengths.

    `want_usage`: a stream ends with the token counts. `show_reasoning`: the agent accepts reasoning in the answer.
    `storable`: later requests may refer to this answer instead of sending it back, and then continue from
    `messages[begin:]`. `echo` holds what the dialect needs again for the answer.
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
    show_reasoning: bool = True
    storable: bool = False
    begin: int = 0
    echo: Mapping[str, Any] = field(default_factory=dict, compare=False)

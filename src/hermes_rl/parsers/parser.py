"""What every tool-call parser gives back, and the one method it has.

A parser never raises for what a model wrote: a call it cannot read is reported in `broken`, beside the good ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from hermes_rl.messages import ToolCall

# OpenAI tool schemas: {"type": "function", "function": {"name": ..., "parameters": {...}}}.
Tools: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """Text that was meant as a tool call and cannot be read as one."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A model's text, split into what it said and what it called."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    broken: tuple[BrokenCall, ...] = ()


class ToolCallParser(Protocol):
    name: str

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        """The calls in the text. `tools` give types to formats that write every value as bare text."""
        ...

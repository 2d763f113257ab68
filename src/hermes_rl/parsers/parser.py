"""What every tool-call parser gives back, and the one method it has.

A parser never raises for what a model wrote: a call it cannot read is reported in `broken`, beside the good ones.
"""

from dataclasses import dataclass
from typing import Protocol

from hermes_rl.messages import ToolCall


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

    def parse(self, text: str) -> ParsedText: ...

"""The interface of a tool-call parser.

A parser never raises for text that a model wrote. It reports a call that it cannot parse in `broken`.
"""

from dataclasses import dataclass
from typing import Protocol

from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.tool_format import ToolFormat, Tools


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """Text that looks like a tool call but cannot be parsed."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A model's text, split into content and calls."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    broken: tuple[BrokenCall, ...] = ()


class ToolCallParser(Protocol):
    """`markers` are strings that reveal an unparsed call of this format."""

    name: str
    markers: tuple[str, ...]
    tool_format: ToolFormat

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        """Split the text into content and calls. Formats with bare values take their types from `tools`."""
        ...

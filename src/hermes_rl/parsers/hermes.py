"""The hermes format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of times."""

import re
from collections.abc import Iterator

from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.call_json import parse_call, read_json
from hermes_rl.parsers.marked_text import MarkedText, markers, parse_calls
from hermes_rl.parsers.parser import BrokenCall, ParsedText
from hermes_rl.parsers.tool_format import Tools, tagged_json


class HermesParser:
    name = "hermes"
    markers = ("<tool_call>", "</tool_call>")
    tool_format = tagged_json(*markers)

    def __init__(self) -> None:
        opened, closed = self.markers
        self._pattern = markers(opened, closed)
        self._openers = frozenset({opened})
        self._stops = frozenset(self.markers)
        # A model may leave the last call open, or open the next call without closing this one.
        self._end = re.compile(rf"\s*+(?:{re.escape(closed)}|(?={re.escape(opened)})|\Z)")

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        return parse_calls(MarkedText(text, self._pattern), self._openers, self._parse_call)

    def _parse_call(self, marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
        yield parse_call(read_json(marked, self._end, self._stops))

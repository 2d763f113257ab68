"""The hermes format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them in the text."""

import re
from collections.abc import Iterator

from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.call_json import call_of, json_to
from hermes_rl.parsers.marked_text import MarkedText, markers, read_calls
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
        # A model may stop short of closing the last call, or open the next one without closing this.
        self._end = re.compile(rf"\s*+(?:{re.escape(closed)}|(?={re.escape(opened)})|\Z)")

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        return read_calls(MarkedText(text, self._pattern), self._openers, self._read)

    def _read(self, marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
        yield call_of(json_to(marked, self._end, self._stops))

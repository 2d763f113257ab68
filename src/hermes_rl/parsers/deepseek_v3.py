"""DeepSeek V3 and R1: a type, a name and fenced JSON between markers.

``<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`` + newline + ```` ```json ````, the arguments, ```` ``` ````
``<｜tool▁call▁end｜>``, all calls between ``<｜tool▁calls▁begin｜>`` and ``<｜tool▁calls▁end｜>``.
"""

import re
from collections.abc import Iterator

from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.call_json import make_call, read_json
from hermes_rl.parsers.marked_text import MarkedText, markers, parse_calls
from hermes_rl.parsers.parser import BrokenCall, ParsedText
from hermes_rl.parsers.tool_format import CallWriter, ToolFormat, Tools, arguments_json

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKERS = markers(ALL_BEGIN, ALL_END, BEGIN, SEPARATOR, END)
OPENERS = frozenset({BEGIN})
STOPS = frozenset({ALL_BEGIN, ALL_END, BEGIN, END})
FENCE = re.compile(r"\s*+(?:```(?:json)?)?")
CLOSED = re.compile(rf"\s*+(?:```\s*+)?(?:{END}|(?={BEGIN}|{ALL_END}|{ALL_BEGIN})|\Z)")


def deepseek_format(example: str, write_call: CallWriter) -> ToolFormat:
    return ToolFormat(
        f"To call functions, end your answer with all calls, written so:\n{ALL_BEGIN}{example}{ALL_END}",
        write_call,
        around=(ALL_BEGIN, ALL_END),
        result=(
            "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>",
            "<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
        ),
    )


class DeepSeekV3Parser:
    name = "deepseek_v3"
    markers = (ALL_BEGIN, BEGIN)
    tool_format = deepseek_format(
        f"{BEGIN}function{SEPARATOR}<name>\n```json\n<object of arguments>\n```{END}",
        lambda call, _: f"{BEGIN}function{SEPARATOR}{call.name}\n```json\n{arguments_json(call.arguments)}\n```{END}",
    )

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        return parse_calls(MarkedText(text, MARKERS), OPENERS, self._parse_call)

    def _parse_call(self, marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
        text, begin = marked.text, marked.position
        if (mark := marked.next_marker) is None or mark.group() != SEPARATOR:
            block = read_json(marked, CLOSED, STOPS)
            yield BrokenCall(block, f"there is no {SEPARATOR} in the call")
            return
        marked.next()
        name = self._name(marked, text[begin : mark.start()])
        arguments = read_json(marked, CLOSED, STOPS).removesuffix("```").rstrip()
        yield make_call(name, arguments, text[begin : marked.position].removesuffix(END).strip())

    def _name(self, marked: MarkedText, before: str) -> str:
        """Return the name and move to the arguments. `before` is the text before the separator."""
        text, begin = marked.text, marked.position
        line = text.find("\n", begin, marked.next_marker_start)
        marked.position = marked.next_marker_start if line < 0 else line
        name = text[begin : marked.position].strip()
        marked.position = FENCE.match(text, marked.position).end()  # type: ignore[union-attr]
        return name

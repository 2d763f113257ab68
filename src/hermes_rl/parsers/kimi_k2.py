"""Kimi K2: `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`.

All calls are between `<|tool_calls_section_begin|>` and `<|tool_calls_section_end|>`. The text before the arguments is
the call's id. It is kept, because the model expects it with the result.
"""

import re
from collections.abc import Iterator

from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.call_json import make_call, read_json
from hermes_rl.parsers.marked_text import MarkedText, markers, parse_calls
from hermes_rl.parsers.parser import BrokenCall, ParsedText
from hermes_rl.parsers.tool_format import ToolFormat, Tools, arguments_json

ALL_BEGIN, ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
MARKERS = markers(ALL_BEGIN, ALL_END, BEGIN, ARGUMENTS, END)
OPENERS = frozenset({BEGIN})
STOPS = frozenset({ALL_BEGIN, ALL_END, BEGIN, END})
CLOSED = re.compile(
    rf"\s*+(?:{re.escape(END)}|(?={'|'.join(re.escape(mark) for mark in (BEGIN, ALL_END, ALL_BEGIN))})|\Z)"
)


def _write_call(call: ToolCall, index: int) -> str:
    head = f"functions.{call.name}:"
    is_own = call.id.startswith(head) and call.id[len(head) :].isdecimal()
    call_id = call.id if is_own else f"{head}{index}"
    return f"{BEGIN}{call_id}{ARGUMENTS}{arguments_json(call.arguments)}{END}"


class KimiK2Parser:
    name = "kimi_k2"
    markers = (ALL_BEGIN, BEGIN)
    tool_format = ToolFormat(
        "To call functions, end your answer with all calls, numbered from 0 and written so:\n"
        f"{ALL_BEGIN}{BEGIN}functions.<name>:<number>{ARGUMENTS}<object of arguments as JSON>{END}{ALL_END}",
        _write_call,
        around=(ALL_BEGIN, ALL_END),
        between="",
        result=("## Return of {id}\n", ""),
    )

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        return parse_calls(MarkedText(text, MARKERS), OPENERS, self._parse_call)

    def _parse_call(self, marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
        text, begin = marked.text, marked.position
        if (mark := marked.next_marker) is None or mark.group() != ARGUMENTS:
            yield BrokenCall(read_json(marked, CLOSED, STOPS), f"there is no {ARGUMENTS} in the call")
            return
        marked.next()
        call_id = text[begin : mark.start()].strip()
        path, _, index = call_id.rpartition(":")
        numbered = bool(path) and index.isdecimal()
        name = (path if numbered else call_id).removeprefix("functions.")
        arguments = read_json(marked, CLOSED, STOPS)
        block = text[begin : marked.position].removesuffix(END).strip()
        yield make_call(name, arguments, block, call_id if numbered else None)

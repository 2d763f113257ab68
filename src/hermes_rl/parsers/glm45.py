"""GLM-4.5: a name, then keys and values in tags, typed by the tool's schema.

`<tool_call>NAME`, for each argument `<arg_key>KEY</arg_key>` and `<arg_value>VALUE</arg_value>`, `</tool_call>`, with a
newline between any two. A value ends at `</arg_value>`, whatever other tags it contains.
"""

import re
from collections.abc import Iterator

from hermes_rl.core import fast_json
from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.marked_text import CallParseError, MarkedText, markers, parse_calls
from hermes_rl.parsers.parser import BrokenCall, ParsedText
from hermes_rl.parsers.schema_values import parse_value, tool_properties
from hermes_rl.parsers.tool_format import RESPONSE_TAGS, ToolFormat, Tools, bare_arguments

CALL, CALL_END = "<tool_call>", "</tool_call>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
MARKERS = markers(CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END)
OPENERS = frozenset({CALL})
CLOSED_CALL = re.compile(r"</tool_call>\s*+(?:<tool_call>|\Z)")
NAME = re.compile(r"""[^\s<>{}"']++""")


def glm_format(line: str) -> ToolFormat:
    """`line` separates the parts of a call."""

    def pair(key: str, value: str) -> str:
        return f"{KEY}{key}{KEY_END}{line}{VALUE}{value}{VALUE_END}{line}"

    def write_call(call: ToolCall, _: int) -> str:
        pairs = "".join(pair(key, value) for key, value in bare_arguments(call))
        return f"{CALL}{call.name}{line}{pairs}{CALL_END}"

    return ToolFormat(
        "For each call, write the function's name, then a key and a value for each argument, between tags:\n"
        f"{CALL}<name>{line}{pair('<argument>', '<value>')}{CALL_END}",
        write_call,
        between=line,
        result=RESPONSE_TAGS,
    )


class Glm45Parser:
    name = "glm45"
    markers = (CALL, KEY)
    tool_format = glm_format("\n")

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        def parse_call(marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
            yield _call(marked, opener, tools)

        return parse_calls(MarkedText(text, MARKERS), OPENERS, parse_call)


def _call(marked: MarkedText, opener: re.Match[str], tools: Tools) -> ToolCall:
    text = marked.text
    name = text[marked.position : marked.next_marker_start].strip()
    try:
        if not NAME.fullmatch(name):
            raise ValueError("there is no function name in the call")
        properties = tool_properties(tools, name)
        arguments = {key: parse_value(value, properties.get(key)) for key, value in _arguments(marked)}
    except ValueError as error:
        if marked.skip_to(CALL, CALL_END):
            marked.consume(CALL_END)
        raise CallParseError(text[opener.start() : marked.position].strip(), str(error)) from None
    return ToolCall.make(name, fast_json.dumps(arguments).decode())


def _arguments(marked: MarkedText) -> Iterator[tuple[str, str]]:
    """Each argument's key and text, until the call ends. The cursor ends after it."""
    while mark := marked.next_marker:
        if mark.group() == CALL:
            # The model went on to the next call, so this one was complete.
            return
        marked.next()
        if mark.group() == CALL_END:
            return
        if mark.group() == KEY:
            yield _key(marked), _value(marked)
    raise ValueError("the text ends before the call does")


def _key(marked: MarkedText) -> str:
    begin, mark = marked.position, marked.next_marker
    if mark is None or mark.group() != KEY_END:
        raise ValueError(f"an {KEY} is not closed")
    marked.next()
    return marked.text[begin : mark.start()].strip()


def _value(marked: MarkedText) -> str:
    text = marked.text
    marked.skip_space()
    if not marked.consume(VALUE):
        raise ValueError(f"a key has no {VALUE}")
    begin = marked.position
    while mark := marked.next_marker:
        tag = mark.group()
        if tag == VALUE:
            raise ValueError(f"an {VALUE} is not closed")
        if tag == VALUE_END or (tag == CALL_END and CLOSED_CALL.match(text, mark.start())):
            marked.position = mark.end() if tag == VALUE_END else mark.start()
            return text[begin : mark.start()]
        marked.next()
    raise ValueError("the text ends inside a value")

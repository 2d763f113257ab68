"""Qwen3-Coder: tags that name the function and its parameters, typed by the tool's schema.

`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, with a newline around each value. A
value ends at `</parameter>`, whatever other tags it contains, since an agent may write a file that contains them.
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
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
MARKERS = markers(CALL, CALL_END, FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END)
OPENERS = frozenset({CALL, FUNCTION})
# The end of a value without its closing tag: the tags that close the call, then the next call or the end of the text.
CLOSED_CALL = re.compile(
    r"</function>\s*+(?:</tool_call>|<tool_call>|<function=|\Z)|</tool_call>\s*+(?:<tool_call>|\Z)"
)
NAME = re.compile(r"""\s*+([^\s<>{}"']++)\s*+>""")


def _write_call(call: ToolCall, _: int) -> str:
    pairs = "".join(f"{PARAMETER}{key}>\n{value}\n{PARAMETER_END}\n" for key, value in bare_arguments(call))
    return f"{CALL}\n{FUNCTION}{call.name}>\n{pairs}{FUNCTION_END}\n{CALL_END}"


class Qwen3CoderParser:
    name = "qwen3_coder"
    markers = (CALL, FUNCTION)
    tool_format = ToolFormat(
        "For each call, write the function and its parameters between tags, each value on lines of its own:\n"
        f"{CALL}\n{FUNCTION}<name>>\n{PARAMETER}<argument>>\n<value>\n{PARAMETER_END}\n{FUNCTION_END}\n{CALL_END}",
        _write_call,
        result=RESPONSE_TAGS,
    )

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        def parse_call(marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
            yield _call(marked, opener, tools)

        return parse_calls(MarkedText(text, MARKERS), OPENERS, parse_call)


def _call(marked: MarkedText, opener: re.Match[str], tools: Tools) -> ToolCall:
    try:
        if opener.group() == CALL:
            _skip_to_function(marked)
        name = _name(marked, "function")
        properties = tool_properties(tools, name)
        arguments = {key: parse_value(value, properties.get(key)) for key, value in _parameters(marked)}
    except ValueError as error:
        if marked.skip_to(CALL, CALL_END, FUNCTION):
            marked.consume(CALL_END)
        raise CallParseError(marked.text[opener.start() : marked.position].strip(), str(error)) from None
    return ToolCall.make(name, fast_json.dumps(arguments).decode())


def _skip_to_function(marked: MarkedText) -> None:
    mark = marked.skip_to(FUNCTION, CALL, CALL_END)
    if mark is None or mark.group() != FUNCTION:
        raise ValueError(f"there is no {FUNCTION}…> in the call")
    marked.next()


def _name(marked: MarkedText, of: str) -> str:
    """The rest of a tag such as `<function=NAME>`."""
    name = NAME.match(marked.text, marked.position, marked.next_marker_start)
    if name is None:
        raise ValueError(f"a {of} has no name")
    marked.position = name.end()
    return name.group(1)


def _parameters(marked: MarkedText) -> Iterator[tuple[str, str]]:
    """Each parameter's name and text, until the call ends. The cursor ends after it."""
    while mark := marked.next_marker:
        tag = mark.group()
        if tag in OPENERS:
            # The model went on to the next call, so this one was complete.
            return
        marked.next()
        if tag == PARAMETER:
            yield _name(marked, "parameter"), _value(marked)
        elif tag in {FUNCTION_END, CALL_END}:
            after = marked.position
            marked.skip_space()
            if tag == CALL_END or not marked.consume(CALL_END):
                marked.position = after
            return
    raise ValueError("the text ends before the call does")


def _value(marked: MarkedText) -> str:
    text, begin = marked.text, marked.position
    while mark := marked.next_marker:
        tag = mark.group()
        if tag in {PARAMETER_END, PARAMETER} or (
            tag in {FUNCTION_END, CALL_END} and CLOSED_CALL.match(text, mark.start())
        ):
            marked.position = mark.end() if tag == PARAMETER_END else mark.start()
            return text[begin : mark.start()].removeprefix("\n").removesuffix("\n")
        marked.next()
    raise ValueError("the text ends inside a parameter")

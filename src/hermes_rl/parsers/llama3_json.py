"""Llama 3: JSON objects `{"name": ..., "parameters": {...}}`, with or without `<|python_tag|>` before them.

The key may also be `arguments`. An object without both a name and one of these is an answer, not a call, unless
the tag precedes it.
"""

import re
from collections.abc import Iterator
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.call_json import call_from_value, not_json
from hermes_rl.parsers.json_span import JsonSpan, json_span
from hermes_rl.parsers.marked_text import MarkedText, markers, parse_calls
from hermes_rl.parsers.parser import BrokenCall, ParsedText
from hermes_rl.parsers.tool_format import ToolFormat, Tools, json_call

TAG, BRACE = "<|python_tag|>", "{"
# Only braces before a key; otherwise every block of code would be scanned.
MARKERS = re.compile(rf'{markers(TAG).pattern}|{{(?=\s*+")')
OPENERS = frozenset({TAG, BRACE})
CALL = re.compile(r'\{\s*+"(?:name|type|function|arguments|parameters)"\s*+:')
ARGUMENTS = ("arguments", "parameters")
# Calls come one after another, in a list, or with semicolons between them.
SEPARATOR = re.compile(r"\s*+[;,\]}]")
BRACKETS = "[]{}; ,\n"


class Llama3JsonParser:
    name = "llama3_json"
    markers = (TAG,)
    tool_format = ToolFormat(
        "To call a function, answer with nothing but a JSON object, "
        '{"name": <name>, "parameters": <object of arguments>}; put a semicolon between two of them.',
        json_call("parameters"),
        between="; ",
    )

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        last_key = max(text.rfind(f'"{key}"') for key in ARGUMENTS)

        def parse_call(marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
            if opener.group() == BRACE and opener.start() > last_key:
                tag = text.find(TAG, marked.position)
                marked.position = len(text) if tag < 0 else tag
            else:
                yield from _parse_at(marked, opener)

        parsed = parse_calls(MarkedText(text, MARKERS), OPENERS, parse_call)
        if parsed.calls and not parsed.content.strip(BRACKETS):
            return ParsedText("", parsed.calls, parsed.broken)
        return parsed


def _parse_at(marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
    text, tagged, begin = marked.text, opener.group() == TAG, opener.start()
    if tagged:
        marked.skip_space()
        begin = marked.position
        if not text.startswith(BRACE, begin):
            marked.skip_to(TAG)
            yield BrokenCall(text[begin : marked.position].rstrip(), f"there is no JSON object after {TAG}")
            return
    span = json_span(text, begin)
    marked.position = span.end
    call = _truncated_call(marked, span, tagged) if span.problem else _call(text[begin : span.end], tagged)
    if call is not None:
        if separator := SEPARATOR.match(text, marked.position):
            marked.position = separator.end()
        yield call


def _call(block: str, tagged: bool) -> ToolCall | BrokenCall | None:
    try:
        value: Any = fast_json.loads(block)
    except ValueError as error:
        return not_json(block, error) if tagged or _is_call(block) else None
    key = next((key for key in ARGUMENTS if key in value), None)
    if key is None or "name" not in value:
        return BrokenCall(block, 'the object has no "name" and "parameters"') if tagged else None
    return call_from_value({"name": value["name"], "arguments": value[key]}, block)


def _truncated_call(marked: MarkedText, span: JsonSpan, tagged: bool) -> BrokenCall | None:
    """The call of an object that is invalid before its end. The next call may begin inside its last string."""
    text = marked.text
    marked.position = span.resume
    if not tagged and not CALL.match(text, span.begin):
        return None
    following = CALL.search(text, span.resume)
    end = following.start() if following else len(text)
    block = text[span.begin : end].rstrip()
    if not tagged and not _is_call(block):
        return None
    marked.position = end
    return BrokenCall(block, f"not valid JSON: {span.problem}")


def _is_call(block: str) -> bool:
    """Whether this invalid object is a call, not code in braces."""
    return CALL.match(block) is not None and any(f'"{key}"' in block for key in ARGUMENTS)

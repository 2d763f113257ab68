"""Llama 3: JSON objects `{"name": ..., "parameters": {...}}`, with or without `<|python_tag|>` before them.

The key may also be `arguments`. An object without both a name and one of these is an answer, not a call, unless the
tag says otherwise.
"""

import re
from collections.abc import Iterator
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.call_json import call_of_value, not_json
from hermes_rl.parsers.json_span import JsonSpan, json_span
from hermes_rl.parsers.marked_text import MarkedText, markers, read_calls
from hermes_rl.parsers.parser import BrokenCall, ParsedText
from hermes_rl.parsers.tool_format import ToolFormat, Tools, json_call

TAG, BRACE = "<|python_tag|>", "{"
# Of all braces only those before a key, else code would cost a look at each of its blocks.
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

        def read(marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
            if opener.group() == BRACE and opener.start() > last_key:
                tag = text.find(TAG, marked.here)
                marked.here = len(text) if tag < 0 else tag
            else:
                yield from _read(marked, opener)

        parsed = read_calls(MarkedText(text, MARKERS), OPENERS, read)
        if parsed.calls and not parsed.content.strip(BRACKETS):
            return ParsedText("", parsed.calls, parsed.broken)
        return parsed


def _read(marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
    text, tagged, begin = marked.text, opener.group() == TAG, opener.start()
    if tagged:
        marked.skip_space()
        begin = marked.here
        if not text.startswith(BRACE, begin):
            marked.pass_to(TAG)
            yield BrokenCall(text[begin : marked.here].rstrip(), f"there is no JSON object behind {TAG}")
            return
    span = json_span(text, begin)
    marked.here = span.end
    call = _cut_short(marked, span, tagged) if span.fault else _call(text[begin : span.end], tagged)
    if call is not None:
        if separator := SEPARATOR.match(text, marked.here):
            marked.here = separator.end()
        yield call


def _call(block: str, tagged: bool) -> ToolCall | BrokenCall | None:
    try:
        value: Any = fast_json.loads(block)
    except ValueError as error:
        return not_json(block, error) if tagged or _is_meant(block) else None
    key = next((key for key in ARGUMENTS if key in value), None)
    if key is None or "name" not in value:
        return BrokenCall(block, 'the object has no "name" and "parameters"') if tagged else None
    return call_of_value({"name": value["name"], "arguments": value[key]}, block)


def _cut_short(marked: MarkedText, span: JsonSpan, tagged: bool) -> BrokenCall | None:
    """An object that stops being JSON before it ends; the next call may begin in what seemed its last string."""
    text = marked.text
    marked.here = span.resume
    if not tagged and not CALL.match(text, span.begin):
        return None
    following = CALL.search(text, span.resume)
    end = following.start() if following else len(text)
    block = text[span.begin : end].rstrip()
    if not tagged and not _is_meant(block):
        return None
    marked.here = end
    return BrokenCall(block, f"not valid JSON: {span.fault}")


def _is_meant(block: str) -> bool:
    """Is this broken object a call, rather than code in braces?"""
    return CALL.match(block) is not None and any(f'"{key}"' in block for key in ARGUMENTS)

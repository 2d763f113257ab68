"""Mistral, both forms: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]` and `[TOOL_CALLS]NAME{...}`.

The second form may put `[ARGS]` before the arguments, and `[CALL_ID]` with an id before that. An id is nine letters or
digits, because Mistral's templates accept no other.
"""

import re
import uuid
from collections.abc import Iterator
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.call_json import call_from_value, make_call, not_json, read_json
from hermes_rl.parsers.json_span import json_span
from hermes_rl.parsers.marked_text import MAX_CALLS, TOO_MANY, MarkedText, markers, parse_calls
from hermes_rl.parsers.parser import BrokenCall, ParsedText
from hermes_rl.parsers.tool_format import ToolFormat, Tools, json_call

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MARKERS = markers(CALLS, ARGS, CALL_ID)
OPENERS = STOPS = frozenset({CALLS})
# Nothing closes a call of the second form: text after the object is content.
ANYTHING = re.compile("")
NAME = re.compile(r"[^\[{]*+")
# Tolerates an extra brace.
SEPARATED = re.compile(r"[\s,}]*+\{")
CALL = re.compile(r'\{\s*+"(?:name|arguments|id)"\s*+:')
LIST_END = re.compile(r"[\s,}]*+\]")
ID = re.compile(r"[a-zA-Z0-9]{9}")


def _write_call(call: ToolCall, index: int) -> str:
    written = json_call("arguments")(call, index)
    return f'{written[:-1]}, "id": "{call.id}"}}' if ID.fullmatch(call.id) else written


class MistralParser:
    name = "mistral"
    markers = (CALLS,)
    tool_format = ToolFormat(
        "To call functions, answer with a JSON list of all calls and nothing else:\n"
        f'{CALLS} [{{"name": <name>, "arguments": <object of arguments>}}]',
        _write_call,
        around=(f"{CALLS} [", "]"),
        between=", ",
        result=("[TOOL_RESULTS] ", "[/TOOL_RESULTS]"),
    )

    def parse(self, text: str, tools: Tools = ()) -> ParsedText:
        return parse_calls(MarkedText(text, MARKERS), OPENERS, self._parse_call)

    def _parse_call(self, marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
        marked.skip_space()
        # A repeated marker counts once.
        while marked.consume(CALLS):
            marked.skip_space()
        if marked.text[marked.position : marked.position + 1] in {"[", "{"} and not marked.consume(ARGS):
            yield from _listed(marked)
        else:
            yield _named(marked)


def _listed(marked: MarkedText) -> Iterator[ToolCall | BrokenCall]:
    text, begin = marked.text, marked.position
    if text[begin] == "[":
        marked.position += 1
    number = 0
    for number, (item, problem) in enumerate(_objects(marked), start=1):
        if number > MAX_CALLS:
            yield BrokenCall(item, TOO_MANY)
            marked.skip_to(CALLS)
            return
        yield BrokenCall(item, f"not valid JSON: {problem}") if problem else _listed_call(item)
    if not number:
        marked.skip_to(CALLS)
        yield BrokenCall(text[begin : marked.position].strip(), "there is no call in the list")
    elif closed := LIST_END.match(text, marked.position):
        marked.position = closed.end()


def _objects(marked: MarkedText) -> Iterator[tuple[str, str]]:
    """The objects of the list, each with its problem, if any. A truncated object ends where the next call begins."""
    text, limit = marked.text, 0
    while separated := SEPARATED.match(text, marked.position):
        begin = separated.end() - 1
        span = json_span(text, begin)
        marked.position = span.end
        if span.problem:
            if limit < span.resume:
                found = text.find(CALLS, span.resume)
                limit = len(text) if found < 0 else found
            following = CALL.search(text, span.resume, limit)
            marked.position = following.start() if following else limit
        yield text[begin : marked.position].rstrip(" \t\r\n,"), span.problem


def _listed_call(item: str) -> ToolCall | BrokenCall:
    try:
        value = fast_json.loads(item)
    except ValueError as error:
        return not_json(item, error)
    return _with_id(call_from_value(value, item), value)


def _named(marked: MarkedText) -> ToolCall | BrokenCall:
    text, begin = marked.text, marked.position
    matched = NAME.match(text, begin, marked.next_marker_start)
    marked.position = matched.end() if matched else begin
    name, call_id = text[begin : marked.position].strip(), None
    if marked.consume(CALL_ID):
        call_id = text[marked.position : marked.next_marker_start].strip()
        marked.position = marked.next_marker_start
    marked.consume(ARGS)
    arguments = read_json(marked, ANYTHING, STOPS)
    block = text[begin : marked.position].strip()
    if not arguments:
        return BrokenCall(block, "the call has no arguments")
    return _with_id(make_call(name, arguments, block), {"id": call_id})


def _with_id(call: ToolCall | BrokenCall, value: Any) -> ToolCall | BrokenCall:
    if isinstance(call, BrokenCall):
        return call
    written = value.get("id")
    kept = isinstance(written, str) and ID.fullmatch(written)
    return ToolCall(written if kept else uuid.uuid4().hex[:9], call.function)

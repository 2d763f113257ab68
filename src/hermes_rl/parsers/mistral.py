"""Mistral, both forms: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]` and `[TOOL_CALLS]NAME{...}`.

The second form may put `[ARGS]` before the arguments, and `[CALL_ID]` with an id before that. An id is nine letters or
digits, because Mistral's templates refuse any other.
"""

import re
import uuid
from collections.abc import Iterator
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.call_json import call_of_value, call_with, json_to, not_json
from hermes_rl.parsers.json_span import json_span
from hermes_rl.parsers.marked_text import MOST, TOO_MANY, MarkedText, markers, read_calls
from hermes_rl.parsers.parser import BrokenCall, ParsedText
from hermes_rl.parsers.tool_format import ToolFormat, Tools, json_call

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MARKERS = markers(CALLS, ARGS, CALL_ID)
OPENERS = STOPS = frozenset({CALLS})
# Nothing closes a call of the second form: the words behind the object are words.
ANYTHING = re.compile("")
NAME = re.compile(r"[^\[{]*+")
# With a brace too many, which models write as easily as one too few.
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
        return read_calls(MarkedText(text, MARKERS), OPENERS, self._read)

    def _read(self, marked: MarkedText, opener: re.Match[str]) -> Iterator[ToolCall | BrokenCall]:
        marked.skip_space()
        # The marker twice in a row is one.
        while marked.passes(CALLS):
            marked.skip_space()
        if marked.text[marked.here : marked.here + 1] in {"[", "{"} and not marked.passes(ARGS):
            yield from _listed(marked)
        else:
            yield _named(marked)


def _listed(marked: MarkedText) -> Iterator[ToolCall | BrokenCall]:
    text, begin = marked.text, marked.here
    if text[begin] == "[":
        marked.here += 1
    number = 0
    for number, (item, fault) in enumerate(_objects(marked), start=1):
        if number > MOST:
            yield BrokenCall(item, TOO_MANY)
            marked.pass_to(CALLS)
            return
        yield BrokenCall(item, f"not valid JSON: {fault}") if fault else _listed_call(item)
    if not number:
        marked.pass_to(CALLS)
        yield BrokenCall(text[begin : marked.here].strip(), "there is no call in the list")
    elif closed := LIST_END.match(text, marked.here):
        marked.here = closed.end()


def _objects(marked: MarkedText) -> Iterator[tuple[str, str]]:
    """The objects of the list, each with its fault. One that is cut short ends where the next call begins."""
    text, limit = marked.text, 0
    while separated := SEPARATED.match(text, marked.here):
        begin = separated.end() - 1
        span = json_span(text, begin)
        marked.here = span.end
        if span.fault:
            if limit < span.resume:
                found = text.find(CALLS, span.resume)
                limit = len(text) if found < 0 else found
            following = CALL.search(text, span.resume, limit)
            marked.here = following.start() if following else limit
        yield text[begin : marked.here].rstrip(" \t\r\n,"), span.fault


def _listed_call(item: str) -> ToolCall | BrokenCall:
    try:
        value = fast_json.loads(item)
    except ValueError as error:
        return not_json(item, error)
    return _with_id(call_of_value(value, item), value)


def _named(marked: MarkedText) -> ToolCall | BrokenCall:
    text, begin = marked.text, marked.here
    matched = NAME.match(text, begin, marked.ahead_at)
    marked.here = matched.end() if matched else begin
    name, call_id = text[begin : marked.here].strip(), None
    if marked.passes(CALL_ID):
        call_id = text[marked.here : marked.ahead_at].strip()
        marked.here = marked.ahead_at
    marked.passes(ARGS)
    arguments = json_to(marked, ANYTHING, STOPS)
    block = text[begin : marked.here].strip()
    if not arguments:
        return BrokenCall(block, "the call has no arguments")
    return _with_id(call_with(name, arguments, block), {"id": call_id})


def _with_id(call: ToolCall | BrokenCall, value: Any) -> ToolCall | BrokenCall:
    if isinstance(call, BrokenCall):
        return call
    written = value.get("id")
    kept = isinstance(written, str) and ID.fullmatch(written)
    return ToolCall(written if kept else uuid.uuid4().hex[:9], call.function)

"""Calls written as JSON: the object with a name and arguments, and arguments that stand alone."""

import re
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.json_span import json_span
from hermes_rl.parsers.marked_text import MarkedText, UnreadableError
from hermes_rl.parsers.parser import BrokenCall


def call_of(block: str) -> ToolCall | BrokenCall:
    """The call of an object such as `{"name": "read_file", "arguments": {"path": "a.txt"}}`."""
    try:
        value: Any = fast_json.loads(block)
    except ValueError as error:
        return not_json(block, error)
    return call_of_value(value, block)


def call_of_value(value: Any, block: str) -> ToolCall | BrokenCall:
    if not isinstance(value, dict):
        return BrokenCall(block, f"expected a JSON object, got {type(value).__name__}")
    if not isinstance(value.get("name"), str) or not value["name"]:
        return BrokenCall(block, 'the object has no "name"')
    return ToolCall.from_raw({"function": value})


def call_with(name: str, arguments: str, block: str, call_id: str | None = None) -> ToolCall | BrokenCall:
    """The call of a name and its arguments, which are JSON as the model wrote it, or nothing at all."""
    if not name:
        return BrokenCall(block, "the call has no name")
    try:
        fast_json.loads(arguments or "{}")
    except ValueError as error:
        return not_json(block, error)
    return ToolCall.make(name, arguments or "{}", call_id)


def not_json(block: str, error: ValueError) -> BrokenCall:
    return BrokenCall(block, f"not valid JSON: {error}")


def json_to(marked: MarkedText, end: re.Pattern[str], stops: frozenset[str]) -> str:
    """The JSON from the cursor to what `end` matches; when it is bad, the text up to the next of the `stops`.

    A marker inside a JSON string is part of the string: an agent may well write a file about tool calls.
    """
    text = marked.text
    marked.skip_space()
    begin, fault = marked.here, ""
    if text[begin : begin + 1] in {"{", "["}:
        span = json_span(text, begin)
        fault = span.fault
        if not fault and (closed := end.match(text, span.end)):
            marked.here = closed.end()
            return text[begin : span.end]
    marked.pass_to(*stops)
    block = text[begin : marked.here].rstrip()
    if ending := end.match(text, marked.here):
        marked.here = ending.end()
    if fault:
        raise UnreadableError(block, f"not valid JSON: {fault}")
    return block

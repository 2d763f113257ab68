"""Calls written as JSON: an object with a name and arguments, or bare arguments."""

import re
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.json_span import json_span
from hermes_rl.parsers.marked_text import CallParseError, MarkedText
from hermes_rl.parsers.parser import BrokenCall


def parse_call(block: str) -> ToolCall | BrokenCall:
    """Parse an object such as `{"name": "read_file", "arguments": {"path": "a.txt"}}`."""
    try:
        value: Any = fast_json.loads(block)
    except ValueError as error:
        return not_json(block, error)
    return call_from_value(value, block)


def call_from_value(value: Any, block: str) -> ToolCall | BrokenCall:
    if not isinstance(value, dict):
        return BrokenCall(block, f"expected a JSON object, got {type(value).__name__}")
    if not isinstance(value.get("name"), str) or not value["name"]:
        return BrokenCall(block, 'the object has no "name"')
    return ToolCall.from_raw({"function": value})


def make_call(name: str, arguments: str, block: str, call_id: str | None = None) -> ToolCall | BrokenCall:
    """A call with these arguments: JSON as the model wrote it, or empty for none."""
    if not name:
        return BrokenCall(block, "the call has no name")
    try:
        fast_json.loads(arguments or "{}")
    except ValueError as error:
        return not_json(block, error)
    return ToolCall.make(name, arguments or "{}", call_id)


def not_json(block: str, error: ValueError) -> BrokenCall:
    return BrokenCall(block, f"not valid JSON: {error}")


def read_json(marked: MarkedText, end: re.Pattern[str], stops: frozenset[str]) -> str:
    """Return the JSON between the cursor and `end`, or the text up to the next of the `stops` if it is invalid.

    A marker inside a JSON string is part of the string: an agent may write a file that contains tool calls.
    """
    text = marked.text
    marked.skip_space()
    begin, problem = marked.position, ""
    if text[begin : begin + 1] in {"{", "["}:
        span = json_span(text, begin)
        problem = span.problem
        if not problem and (closed := end.match(text, span.end)):
            marked.position = closed.end()
            return text[begin : span.end]
    marked.skip_to(*stops)
    block = text[begin : marked.position].rstrip()
    if ending := end.match(text, marked.position):
        marked.position = ending.end()
    if problem:
        raise CallParseError(block, f"not valid JSON: {problem}")
    return block

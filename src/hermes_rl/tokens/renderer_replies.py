"""What sampled ids say, read by a renderer of the `renderers` package.

Always true: calls are found by the ids of their markers, so text that only looks like one is text. Nothing that a model
sampled is lost or makes it raise: what cannot be read is the reply's content, and told as a broken call.
"""

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from hermes_rl import jsontext
from hermes_rl.messages import ToolCall
from hermes_rl.parsers import BrokenCall
from hermes_rl.parsers.json_span import json_span
from hermes_rl.tokens.chat_format import Reply, Tools
from hermes_rl.tokens.renderer_package import package
from hermes_rl.tokens.thinking import CLOSE

# What a reader may raise for what a model wrote: a number of 5,000 digits, JSON 10,000 levels deep.
UNREADABLE = (ValueError, TypeError, LookupError, RuntimeError, AttributeError)
OPENING_BRACE = re.compile(r"\{")


class ReplyReader:
    def __init__(self, renderer: Any, decode: Callable[[Sequence[int]], str]) -> None:
        self._renderer = renderer
        self._decode = decode
        self._stops = frozenset(renderer.get_stop_token_ids())
        self._ok = package().ToolCallParseStatus.OK

    def read(self, sampled: Sequence[int], prompt: list[int], tools: Tools) -> Reply:
        """Of the prompt, what follows its last stop token is enough."""
        ids = list(sampled)
        end = next((place for place, token in enumerate(ids) if token in self._stops), len(ids))
        schemas = [dict(tool) for tool in tools] or None
        try:
            parsed = self._renderer.parse_response(ids, tools=schemas, prompt_ids=prompt)
            # Who was offered no tools has called none: Llama writes any JSON object with a name like a call.
            attempts = [self._call(attempt) for attempt in parsed.tool_calls if tools]
            calls = tuple(call for call in attempts if isinstance(call, ToolCall))
            broken = tuple(call for call in attempts if isinstance(call, BrokenCall))
            said = parsed.content.strip()
            if not calls and parsed.reasoning_complete is not False:
                said = self._all_said(ids[:end], parsed, prompt)
        except UNREADABLE as error:
            text = self._decode(ids[:end])
            return Reply(text, broken=(BrokenCall(text, f"it cannot be read: {error}"),))
        thought = parsed.reasoning_content
        return Reply(said, thought and thought.strip(), calls, broken)

    def _call(self, attempt: Any) -> ToolCall | BrokenCall:
        if attempt.status != self._ok:
            return BrokenCall(attempt.raw, str(attempt.status.value).replace("_", " "))
        if not isinstance(attempt.name, str):
            return BrokenCall(attempt.raw, "the name is not a string")
        return ToolCall.make(attempt.name, _arguments(attempt.arguments, attempt.raw), attempt.id)

    def _all_said(self, ids: list[int], parsed: Any, prompt: list[int]) -> str:
        """All text but the thinking: a parser leaves out what it took for a call, and what follows it."""
        said = str(parsed.content).strip()
        if said and not parsed.tool_calls and self._decode(ids).rstrip().endswith(said):
            return said
        first = min((attempt.token_span[0] for attempt in parsed.tool_calls if attempt.token_span), default=len(ids))
        said = str(self._renderer.parse_response(ids[:first], prompt_ids=prompt).content).strip()
        before, rest = self._decode(ids[:first]), self._decode(ids[first:])
        if said and (place := before.rfind(said)) >= 0:
            return (before[place:] + rest).strip()
        _, closed, after = before.rpartition(CLOSE)
        return ((after if closed or not parsed.reasoning_content else "") + rest).strip()


def _arguments(value: Any, raw: str) -> str:
    """A call's arguments as JSON text, the model's own where it wrote JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        # They are the first object in the text, or stand in it beside the name.
        for brace in islice(OPENING_BRACE.finditer(raw), 2):
            span = json_span(raw, brace.start())
            text = raw[span.begin : span.end]
            if not span.fault and _value(text) == value:
                return text
    return "{}" if value is None else jsontext.dumps(value).decode()


def _value(text: str) -> Any:
    try:
        return jsontext.loads(text)
    except ValueError:
        return None

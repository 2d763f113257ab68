"""OpenAI-format messages and tool calls, and the helpers every reward needs.

A message is a plain dict, as on the wire. A tool call is normalised once, here, whether it came as a dict or as an
object; after that its name is a string and its arguments are the text the model wrote.
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from hermes_rl.core import fast_json

Message: TypeAlias = dict[str, Any]
"""One message of a conversation, in the format of OpenAI's chat API."""


class ToolFunction(NamedTuple):
    """The function half of a tool call. `arguments` is the text the model wrote, valid JSON or not."""

    name: str
    arguments: str


class ToolCall(NamedTuple):
    """One tool call of the model, in the shape of the OpenAI client's objects."""

    id: str
    function: ToolFunction
    type: str = "function"

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.function.name

    @property
    def arguments(self) -> str:
        """The text the model wrote, valid JSON or not."""
        return self.function.arguments

    @classmethod
    def make(cls, name: str, arguments: str, call_id: str | None = None) -> "ToolCall":
        """A call with a new id unless one is given."""
        return cls(id=call_id or f"call_{uuid.uuid4().hex[:24]}", function=ToolFunction(name, arguments))

    @classmethod
    def from_raw(cls, raw: Any) -> "ToolCall":
        """Normalise a tool call given as a dict, an SDK object or a ToolCall."""
        if isinstance(raw, cls):
            return raw
        if isinstance(raw, dict) and isinstance(function := raw.get("function"), dict):
            # The usual case, on the hot path of every turn.
            name, arguments, call_id = function.get("name"), function.get("arguments"), raw.get("id")
            if type(name) is str and type(arguments) is str and type(call_id) is str and call_id:
                return cls(call_id, ToolFunction(name, arguments))
        function = _part(raw, "function") or {}
        name, arguments, call_id = _part(function, "name"), _part(function, "arguments"), _part(raw, "id")
        if arguments is None:
            arguments = "{}"
        elif not isinstance(arguments, str):
            # Some endpoints send the arguments already parsed.
            arguments = fast_json.dumps(arguments).decode()
        return cls.make(
            name if isinstance(name, str) else "",
            arguments,
            call_id if isinstance(call_id, str) else None,
        )

    def as_dict(self) -> dict[str, Any]:
        """The call as it appears in a request message."""
        return {"id": self.id, "type": self.type, "function": {"name": self.name, "arguments": self.arguments}}


def tool_calls(messages: Iterable[Message]) -> list[ToolCall]:
    """Every tool call of the conversation, in order."""
    return [
        ToolCall.from_raw(raw)
        for message in messages
        if message.get("role") == "assistant"
        for raw in message.get("tool_calls") or ()
    ]


def with_unique_ids(calls: Iterable[ToolCall]) -> list[ToolCall]:
    """The calls of one turn, with a new id where one repeats: results are matched to calls by id."""
    seen: set[str] = set()
    unique = []
    for call in calls:
        renamed = ToolCall.make(call.name, call.arguments) if call.id in seen else call
        seen.add(renamed.id)
        unique.append(renamed)
    return unique


def tools_used(messages: Iterable[Message]) -> list[str]:
    """The names of the called tools, in order, with repeats."""
    return [call.name for call in tool_calls(messages) if call.name]


def final_response(messages: Iterable[Message]) -> str:
    """The text of the last assistant message with text; "" when there is none."""
    for message in reversed(list(messages)):
        if message.get("role") == "assistant":
            text = content_text(message.get("content"))
            if text:
                return text
    return ""


def tool_name(schema: Mapping[str, Any]) -> str:
    """The name of a tool in OpenAI's format."""
    return str((schema.get("function") or schema).get("name"))


def content_text(content: Any) -> str:
    """The text of a message's content, which may be a string, a list of parts or null."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        )
    return ""


def _part(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)

"""A chat completion: attributes named as in the OpenAI client, tool calls normalised, reasoning in one place."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from hermes_rl.core.errors import EndpointError
from hermes_rl.core.messages import ToolCall, content_text
from hermes_rl.core.trajectory import Usage
from hermes_rl.parsers import BrokenCall

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")


class ChatMessage(NamedTuple):
    """The model's message. `content` is text or None; `reasoning_content` is its reasoning, from any of the fields.

    `reasoning_fields` are the fields as received: the endpoint expects them back unchanged. `broken_calls` are tool
    calls that a server which parses calls itself could not parse.
    """

    role: str
    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_content: str | None = None
    reasoning_fields: Mapping[str, Any] = MappingProxyType({})
    broken_calls: tuple[BrokenCall, ...] = ()


@dataclass(slots=True)
class Choice:
    index: int
    message: ChatMessage
    finish_reason: str | None


class ChatCompletion(NamedTuple):
    id: str
    model: str
    choices: tuple[Choice, ...]
    usage: Usage

    @classmethod
    def parse(cls, body: Any, endpoint: str) -> "ChatCompletion":
        """Parse an endpoint's decoded JSON answer; EndpointError when it is malformed or has no choices."""
        if not isinstance(body, dict) or not isinstance(body.get("choices"), list):
            raise EndpointError("bad_response", f"{endpoint} answered without choices: {_excerpt(body)}")
        choices = tuple([_choice(index, raw, endpoint) for index, raw in enumerate(body["choices"])])
        if not choices:
            raise EndpointError("empty_choices", f"{endpoint} answered with an empty list of choices: {_excerpt(body)}")
        return cls(str(body.get("id") or ""), str(body.get("model") or ""), choices, _usage(body.get("usage")))


def _choice(index: int, raw: Any, endpoint: str) -> Choice:
    message = raw.get("message") if isinstance(raw, dict) else None
    if not isinstance(message, dict):
        raise EndpointError("bad_response", f"{endpoint} answered with a choice that has no message: {_excerpt(raw)}")
    content, calls, finish_reason = message.get("content"), message.get("tool_calls"), raw.get("finish_reason")
    reasoning = {name: message[name] for name in REASONING_FIELDS if message.get(name)}
    parsed = ChatMessage(
        "assistant",
        content if content is None or type(content) is str else content_text(content),
        tuple([ToolCall.from_raw(call) for call in calls]) if isinstance(calls, list) else (),
        _reasoning_text(reasoning) if reasoning else None,
        reasoning,
    )
    return Choice(index, parsed, finish_reason if isinstance(finish_reason, str) else None)


def _reasoning_text(fields: dict[str, Any]) -> str | None:
    for name in ("reasoning_content", "reasoning"):
        if isinstance(fields.get(name), str):
            return str(fields[name])
    details = fields.get("reasoning_details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(detail.get("text"), str):
            return str(detail["text"])
    return None


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return Usage(prompt if isinstance(prompt, int) else None, completion if isinstance(completion, int) else None)


def _excerpt(body: Any) -> str:
    text = str(body)
    return text if len(text) <= 300 else text[:300] + "…"

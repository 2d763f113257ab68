"""A chat completion: attributes named as in the OpenAI client, tool calls normalised, reasoning in one place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_rl.errors import EndpointError
from hermes_rl.messages import ToolCall, content_text
from hermes_rl.trajectory import Usage


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """What the model said. `content` is text or None; `reasoning_content` is its thinking, wherever it was put."""

    role: str
    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_content: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    index: int
    message: ChatMessage
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    id: str
    model: str
    choices: tuple[Choice, ...]
    usage: Usage

    @classmethod
    def of(cls, body: Any, endpoint: str) -> "ChatCompletion":
        """Read an endpoint's answer; EndpointError when it is not one, or has no choices."""
        if not isinstance(body, Mapping) or not isinstance(body.get("choices"), list):
            raise EndpointError("bad_response", f"{endpoint} answered without choices: {_shown(body)}")
        choices = tuple(_choice(index, raw, endpoint) for index, raw in enumerate(body["choices"]))
        if not choices:
            raise EndpointError("empty_choices", f"{endpoint} answered with an empty list of choices: {_shown(body)}")
        return cls(
            id=str(body.get("id") or ""), model=str(body.get("model") or ""), choices=choices, usage=_usage(body)
        )


def _choice(index: int, raw: Any, endpoint: str) -> Choice:
    message = raw.get("message") if isinstance(raw, Mapping) else None
    if not isinstance(message, Mapping):
        raise EndpointError("bad_response", f"{endpoint} answered with a choice that has no message: {_shown(raw)}")
    content, calls, finish_reason = message.get("content"), message.get("tool_calls"), raw.get("finish_reason")
    return Choice(
        index=index,
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        message=ChatMessage(
            role="assistant",
            content=None if content is None else content_text(content),
            tool_calls=tuple(ToolCall.of(call) for call in calls) if isinstance(calls, list) else (),
            reasoning_content=_reasoning(message),
        ),
    )


def _reasoning(message: Mapping[str, Any]) -> str | None:
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str) and message[name]:
            return str(message[name])
    details = message.get("reasoning_details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, Mapping) and isinstance(detail.get("text"), str):
            return str(detail["text"])
    return None


def _usage(body: Mapping[str, Any]) -> Usage:
    usage = body.get("usage")
    if not isinstance(usage, Mapping):
        return Usage()
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    return Usage(*(count if isinstance(count, int) else None for count in counts))


def _shown(body: Any) -> str:
    text = str(body)
    return text if len(text) <= 300 else text[:300] + "…"

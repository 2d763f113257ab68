"""Span attributes of a model call, following the semantic conventions for generative AI."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hermes_rl.core.messages import Message, content_text
from hermes_rl.inference.completion import ChatCompletion, ChatMessage
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.tracing.span import TracedSpan


def set_chat_attributes(
    span: TracedSpan,
    config: APIServerConfig | None,
    model: str | None,
    parameters: Mapping[str, Any],
    messages: Sequence[Message],
    completion: ChatCompletion | None,
) -> None:
    """Set the span's attributes: model, parameters and usage, and the messages if the span records content."""
    if config is None:
        return
    usage = completion.usage if completion else None
    # Same order as `conventions.FIELDS`.
    span.attributes = (
        model or config.model_name,
        config.server_type,
        config.shown_url or None,
        parameters.get("temperature"),
        parameters.get("max_tokens"),
        usage and usage.prompt_tokens,
        usage and usage.completion_tokens,
        completion.choices[0].finish_reason if completion and completion.choices else None,
    )
    if span.content:
        span.attributes += (
            [_input_message(message) for message in messages],
            [_output_message(choice.message) for choice in completion.choices] if completion else None,
        )


def _input_message(message: Message) -> dict[str, Any]:
    if message["role"] == "tool":
        result = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": "tool", "parts": [result]}
    functions = [(call.get("id"), call["function"]) for call in message.get("tool_calls") or ()]
    calls = [(call_id, function.get("name"), function.get("arguments")) for call_id, function in functions]
    return {"role": message["role"], "parts": _parts(content_text(message.get("content")), calls)}


def _output_message(message: ChatMessage) -> dict[str, Any]:
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return {"role": "assistant", "parts": _parts(message.content or "", calls)}


def _parts(text: str, calls: Iterable[tuple[Any, Any, Any]]) -> list[dict[str, Any]]:
    parts = [{"type": "text", "content": text}] if text else []
    return parts + [
        {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments} for call_id, name, arguments in calls
    ]

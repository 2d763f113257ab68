"""What a trace says of one model call, after the conventions for generative AI."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hermes_rl.inference.completion import ChatCompletion, ChatMessage
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.messages import Message, content_text
from hermes_rl.tracing.span import TracedSpan


def note_chat(
    span: TracedSpan,
    config: APIServerConfig | None,
    model: str | None,
    parameters: Mapping[str, Any],
    messages: Sequence[Message],
    completion: ChatCompletion | None,
) -> None:
    """Which model, how, and what it took; the words only where that is asked for. Without a completion it failed."""
    if config is None:
        return
    usage = completion.usage if completion else None
    # In the order of `conventions.FIELDS`.
    span.attributes = (
        model or config.model_name,
        config.server_type,
        config.base_url,
        parameters.get("temperature"),
        parameters.get("max_tokens"),
        usage and usage.prompt_tokens,
        usage and usage.completion_tokens,
        completion.choices[0].finish_reason if completion and completion.choices else None,
    )
    if span.content:
        span.attributes += (
            [in_parts(message) for message in messages],
            [said(choice.message) for choice in completion.choices] if completion else None,
        )


def in_parts(message: Message) -> dict[str, Any]:
    """A message as the conventions write it."""
    if message["role"] == "tool":
        told = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": "tool", "parts": [told]}
    functions = [(call.get("id"), call["function"]) for call in message.get("tool_calls") or ()]
    calls = [(name, function.get("name"), function.get("arguments")) for name, function in functions]
    return {"role": message["role"], "parts": _parts(content_text(message.get("content")), calls)}


def said(message: ChatMessage) -> dict[str, Any]:
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return {"role": "assistant", "parts": _parts(message.content or "", calls)}


def _parts(text: str, calls: Iterable[tuple[Any, Any, Any]]) -> list[dict[str, Any]]:
    words = [{"type": "text", "content": text}] if text else []
    return words + [
        {"type": "tool_call", "id": one, "name": name, "arguments": arguments} for one, name, arguments in calls
    ]

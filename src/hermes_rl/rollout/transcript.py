"""A conversation as text in the seed's format: reasoning, tool calls and results, with long parts truncated."""

from collections.abc import Iterable

from hermes_rl.core.messages import Message, ToolCall, content_text

MAX_REASONING_CHARS, MAX_ARGUMENT_CHARS, MAX_RESULT_CHARS = 300, 200, 500


def transcript(messages: Iterable[Message]) -> str:
    return "\n\n".join(part for message in messages for part in _parts(message))


def _parts(message: Message) -> list[str]:
    role, text = str(message.get("role", "unknown")), content_text(message.get("content"))
    if role == "tool":
        return [f"[TOOL RESULT] {_truncate(text, MAX_RESULT_CHARS)}"]
    parts = []
    if reasoning := message.get("reasoning_content"):
        parts.append(f"[{role.upper()} thinking]\n{_truncate(str(reasoning), MAX_REASONING_CHARS)}")
    if text or role in {"system", "user"}:
        parts.append(f"[{role.upper()}]\n{text}")
    for raw in message.get("tool_calls") or ():
        call = ToolCall.from_raw(raw)
        parts.append(f"[TOOL CALL] {call.name}({_truncate(call.arguments, MAX_ARGUMENT_CHARS)})")
    return parts


def _truncate(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "..."

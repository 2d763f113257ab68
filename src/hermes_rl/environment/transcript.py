"""A conversation as text a person can read: roles, reasoning, tool calls and results, long parts cut."""

from collections.abc import Iterable

from hermes_rl.messages import Message, ToolCall, content_text

REASONING_SHOWN, ARGUMENTS_SHOWN, RESULT_SHOWN = 300, 200, 500


def transcript(messages: Iterable[Message]) -> str:
    return "\n\n".join(part for message in messages for part in _parts(message))


def _parts(message: Message) -> list[str]:
    role, text = str(message.get("role", "unknown")), content_text(message.get("content"))
    if role == "tool":
        return [f"[TOOL RESULT] {_cut(text, RESULT_SHOWN)}"]
    parts = []
    if reasoning := message.get("reasoning_content"):
        parts.append(f"[{role.upper()} thinking]\n{_cut(str(reasoning), REASONING_SHOWN)}")
    if text:
        parts.append(f"[{role.upper()}]\n{text}")
    for raw in message.get("tool_calls") or ():
        call = ToolCall.of(raw)
        parts.append(f"[TOOL CALL] {call.name}({_cut(call.arguments, ARGUMENTS_SHOWN)})")
    return parts


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "…"

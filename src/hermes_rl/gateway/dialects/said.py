"""What the policy said, ready to be told in any dialect.

Always true: what an agent sends back unchanged is read as `message` again, so that the recorder finds its stream.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Any, NamedTuple

from hermes_rl import jsontext
from hermes_rl.gateway.asked import Asked, Told
from hermes_rl.inference.completion import Choice
from hermes_rl.messages import Message, ToolCall

SEAL = "hermes-rl:"
# A stream of many pieces costs more than it gives: the answer is whole before its first event is sent.
PIECES = 8
SHORTEST_PIECE = 16
# As Anthropic's documentation has a client hand back what is no JSON.
INVALID = "INVALID_JSON"


class Said(NamedTuple):
    """`finish` is OpenAI's word, or `context_full`. `stopped_by` is the stop sequence that ended the text."""

    text: str
    thinking: str
    calls: tuple[ToolCall, ...]
    finish: str
    stopped_by: str | None = None

    @classmethod
    def of(cls, asked: Asked, choice: Choice) -> "Said":
        message = choice.message
        whole, finish = message.content or "", choice.finish_reason or "stop"
        found = [(place, stop) for stop in asked.stop if (place := whole.find(stop)) >= 0]
        place, stop = min(found, default=(len(whole), None))
        if stop is not None:
            finish = "stop"
        elif message.tool_calls and finish == "stop":
            finish = "tool_calls"
        thinking = message.reasoning_content or "" if asked.show_thinking else ""
        return cls(whole[:place], thinking, message.tool_calls, finish, stop)

    @property
    def message(self) -> Message:
        return assistant(self.text, self.thinking, [call.as_dict() for call in self.calls])


def assistant(text: str, thinking: str = "", calls: list[dict[str, Any]] | None = None) -> Message:
    """An assistant's message in the form that the recorder keeps."""
    message: Message = {"role": "assistant", "content": text}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = calls
    return message


def mark(told: Told) -> str:
    """What all ids of one answer have in common."""
    return told.id.removeprefix("chatcmpl-") or "0"


def pieces(text: str) -> Iterator[str]:
    """A text in a few pieces; none of an empty one."""
    length = max(SHORTEST_PIECE, -(-len(text) // PIECES))
    return (text[place : place + length] for place in range(0, len(text), length))


def sealed(thinking: str) -> str:
    """Thinking as a token that an agent hands back unread, as providers' signatures and encrypted contents are."""
    return SEAL + base64.b64encode(thinking.encode(errors="replace")).decode()


def opened(token: Any) -> str | None:
    """The thinking in a token of ours; None for any other."""
    if not isinstance(token, str) or not token.startswith(SEAL):
        return None
    try:
        return base64.b64decode(token.removeprefix(SEAL), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def arguments_object(arguments: str) -> dict[str, Any]:
    """A call's arguments as an object, for dialects that have no other form; `arguments_text` is the way back."""
    try:
        read = jsontext.loads(arguments)
    except ValueError:
        return {INVALID: arguments}
    if not isinstance(read, dict) or set(read) == {INVALID} or jsontext.loads(jsontext.dumps(read)) != read:
        return {INVALID: arguments}
    return read


def arguments_text(read: dict[str, Any]) -> str:
    if set(read) == {INVALID} and isinstance(read[INVALID], str):
        return str(read[INVALID])
    return jsontext.dumps(read).decode()

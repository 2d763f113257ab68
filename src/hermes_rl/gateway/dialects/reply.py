"""The policy's reply, ready to be encoded in any dialect.

A reply that an agent sends back unchanged is parsed to `message` again, so that the recorder finds its stream.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Any, NamedTuple

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.gateway.request import AgentRequest
from hermes_rl.inference.completion import ChatCompletion, Choice

SEAL = "hermes-rl:"
# Few chunks are enough, since the answer is complete before its first event is sent.
MAX_CHUNKS = 8
MIN_CHUNK = 16
# Anthropic's documentation tells clients to send back invalid JSON under this key.
INVALID = "INVALID_JSON"


class AgentReply(NamedTuple):
    """`finish` is OpenAI's finish reason, or `context_full`. `stopped_by` is the stop sequence that ended the text."""

    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish: str
    stopped_by: str | None = None

    @classmethod
    def from_choice(cls, request: AgentRequest, choice: Choice) -> "AgentReply":
        message = choice.message
        whole, finish = message.content or "", choice.finish_reason or "stop"
        found = [(index, stop) for stop in request.stop if (index := whole.find(stop)) >= 0]
        end, stop = min(found, default=(len(whole), None))
        if stop is not None:
            finish = "stop"
        elif message.tool_calls and finish == "stop":
            finish = "tool_calls"
        reasoning = message.reasoning_content or "" if request.show_reasoning else ""
        return cls(whole[:end], reasoning, message.tool_calls, finish, stop)

    @property
    def message(self) -> Message:
        return assistant_message(self.text, self.reasoning, [call.as_dict() for call in self.calls])


def assistant_message(text: str, reasoning: str = "", calls: list[dict[str, Any]] | None = None) -> Message:
    """An assistant message in the form that the recorder uses."""
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def answer_id(completion: ChatCompletion) -> str:
    """The part that all ids of one answer share."""
    return completion.id.removeprefix("chatcmpl-") or "0"


def chunks(text: str) -> Iterator[str]:
    """Split a text into a few chunks; none for an empty text."""
    length = max(MIN_CHUNK, -(-len(text) // MAX_CHUNKS))
    return (text[start : start + length] for start in range(0, len(text), length))


def seal(reasoning: str) -> str:
    """Reasoning as an opaque token that an agent sends back, like providers' signatures and encrypted contents."""
    return SEAL + base64.b64encode(reasoning.encode(errors="replace")).decode()


def unseal(token: Any) -> str | None:
    """The reasoning in one of our tokens; None for any other token."""
    if not isinstance(token, str) or not token.startswith(SEAL):
        return None
    try:
        return base64.b64decode(token.removeprefix(SEAL), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def arguments_object(arguments: str) -> dict[str, Any]:
    """A call's arguments as an object, for dialects that require one; `arguments_text` is the inverse."""
    try:
        read = fast_json.loads(arguments)
    except ValueError:
        return {INVALID: arguments}
    if not isinstance(read, dict) or set(read) == {INVALID} or fast_json.loads(fast_json.dumps(read)) != read:
        return {INVALID: arguments}
    return read


def arguments_text(read: dict[str, Any]) -> str:
    if set(read) == {INVALID} and isinstance(read[INVALID], str):
        return str(read[INVALID])
    return fast_json.dumps(read).decode()

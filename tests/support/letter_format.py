"""LetterFormat: a chat format small enough to read a stream of it by eye.

A token is a character. `u:` `a:` `s:` `r:` begin a user's, an assistant's, a system's and a tool's message, `|` ends
each. A reply thinks in round brackets and calls a tool in square ones. With `strips_thinking` the thinking of earlier
turns is left out once a user speaks again, as Qwen3's template does.
"""

import re
from collections.abc import Sequence
from typing import Any

from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.inference.tokens.chat_format import Reply, Tools, Turn
from hermes_rl.inference.tokens.sampled import Finish, Sampled

STOP = "|"
LETTERS = {"user": "u", "assistant": "a", "system": "s", "tool": "r"}
THOUGHT = re.compile(r"\(([^)]*)\)")
CALL = re.compile(r"\[(\w+)]$")
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


class LetterFormat:
    name = "letters"

    def __init__(self, *, strips_thinking: bool = False) -> None:
        self.stop_token_ids: tuple[int, ...] = (ord(STOP),)
        self.strips_thinking = strips_thinking

    def prompt(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        return self.encode(self.transcript(messages, tools))

    def continuation(self, turn: Turn, new: Sequence[Message], tools: Tools) -> list[int] | None:
        asked_again = any(message["role"] == "user" for message in new)
        thought = any(message.get("reasoning_content") for message in turn.history)
        if self.strips_thinking and asked_again and thought:
            return None
        stopped = turn.sampled[-1] in self.stop_token_ids
        return self.encode(("" if stopped else STOP) + "".join(map(self._written, new)) + "a:")

    def reply(self, sampled: Sequence[int], prompt: Sequence[int], tools: Tools) -> Reply:
        text = self.decode(sampled).removesuffix(STOP)
        thought = THOUGHT.match(text)
        text = text[thought.end() :] if thought else text
        call = CALL.search(text)
        calls = (ToolCall.make(call[1], "{}"),) if call else ()
        return Reply(text[: call.start()] if call else text, thought[1] if thought else None, calls)

    def transcript(self, messages: Sequence[Message], tools: Tools) -> str:
        names = ",".join(tool["function"]["name"] for tool in tools)
        asked = max(
            (place for place, message in enumerate(messages) if message["role"] == "user"), default=len(messages)
        )
        text = f"t:{names}{STOP}" if tools else ""
        for place, message in enumerate(messages):
            forgotten = self.strips_thinking and place < asked
            text += self._written({**message, "reasoning_content": None} if forgotten else message)
        return text + "a:"

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    @staticmethod
    def _written(message: Message) -> str:
        thought = f"({message['reasoning_content']})" if message.get("reasoning_content") else ""
        calls = "".join(f"[{ToolCall.from_raw(call).name}]" for call in message.get("tool_calls") or ())
        return f"{LETTERS[message['role']]}:{thought}{message.get('content') or ''}{calls}{STOP}"


def said(text: str, first: float = -0.5, version: int | None = 0, finish: Finish = Finish.STOP) -> Sampled:
    """A completion of that text; the logprobs count down from `first`, so that no two tokens have the same."""
    return Sampled(
        tuple(map(ord, text)), tuple(first - place / 64 for place in range(len(text))), (version,) * len(text), finish
    )

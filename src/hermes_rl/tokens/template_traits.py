"""What a chat template does with what it is given, found out by rendering made-up conversations.

Always true: a template is never read, only tried, so one that nobody knows is as good as any. The words it is tried
with are made anew each time, so that no message can hold them.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from hermes_rl.errors import AuthorError
from hermes_rl.messages import Message
from hermes_rl.tokens.chat_format import Tools

PROBE_ID, LONG_ID = "probe0001", "call_0123456789abcdef01234567"


class Render(Protocol):
    def __call__(self, messages: Sequence[Message], tools: Tools | None, *, generate: bool = True) -> str:
        """The template's text, up to where the model is to speak if it is to `generate`; AuthorError if it refuses."""
        ...


class MadeUp:
    """Made-up words, and the shortest messages and the tool that hold them.

    `turn` stands in the turn that is looked at, `past` around it, and `kept` for thinking on its way past a template.
    """

    def __init__(self) -> None:
        # Not the same for every format: an agent may well be reading this file.
        nonce = secrets.token_hex(6)
        self.turn, self.past, self.kept = f"turn{nonce}", f"past{nonce}", f"keep{nonce}"
        self.user: Message = {"role": "user", "content": f"{self.past}U"}
        self.said: Message = {"role": "assistant", "content": self.turn}
        parameters = {"type": "object", "properties": {"name": {"type": "string", "description": self.past}}}
        function = {"name": f"{self.past}tool", "description": self.past, "parameters": parameters}
        self.tool: dict[str, Any] = {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Traits:
    """What a template does with what it is given."""

    system: bool
    tools: bool
    calls: int
    """How many calls of one message it shows; 2 stands for any number."""
    objects: bool
    """It takes a call's arguments as an object; as text otherwise."""
    texts: bool
    """It can take them as text at all."""
    beside_calls: bool
    """It keeps what a message says beside its calls."""
    unlisted_calls: bool
    """It lets a tool's result follow a message without calls."""
    long_ids: bool
    tool_role: bool
    reasoning: bool


def found_traits(render: Render, made_up: MadeUp) -> Traits:
    user, said, turn, past = made_up.user, made_up.said, made_up.turn, made_up.past
    shows = partial(_shows, render)
    tools = [made_up.tool] if shows([user], f"{past}tool", [made_up.tool]) else None

    def calling(*arguments: Any, content: str = "", call_id: str = PROBE_ID) -> Message:
        calls = [{"id": call_id, "type": "function", "function": {"name": past, "arguments": one}} for one in arguments]
        return {"role": "assistant", "content": content, "tool_calls": calls}

    first, second = {"key": f"{turn}1"}, {"key": f"{turn}2"}
    objects = shows([user, calling(first)], f"{turn}1", tools, never="'key'")
    texts = shows([user, calling(json.dumps(first))], f"{turn}1", tools)
    one, two = (first, second) if objects else (json.dumps(first), json.dumps(second))
    both = [user, calling(one, two)]
    listed = objects or texts
    many = listed and all(shows(both, f"{turn}{place}", tools) for place in (1, 2))
    asked = calling(one) if listed else said
    answered: Message = {"role": "tool", "tool_call_id": PROBE_ID, "name": past, "content": f"{past}T"}
    tool_role = shows([user, asked, answered], f"{past}T", tools)
    answer = answered if tool_role else {"role": "user", "content": f"{past}T"}
    return Traits(
        system=shows([{"role": "system", "content": turn}, user], turn, tools),
        tools=tools is not None,
        calls=0 if not listed else 2 if many else 1,
        objects=objects,
        texts=texts,
        beside_calls=listed and shows([user, calling(one, content=f"{turn}C")], f"{turn}C", tools),
        unlisted_calls=shows([user, said, answer, said, user], f"{past}T", tools),
        long_ids=listed and shows([user, calling(one, call_id=LONG_ID)], f"{turn}1", tools),
        tool_role=tool_role,
        reasoning=shows([user, {**said, "reasoning_content": f"{turn}R"}], f"{turn}R", tools),
    )


def generation_prompt(render: Render, made_up: MadeUp) -> str:
    """What the template writes for the model to speak after."""
    closed = render([made_up.user], None, generate=False)
    return render([made_up.user], None).removeprefix(closed)


def _shows(
    render: Render, messages: Sequence[Message], what: str, tools: Tools | None, never: str | None = None
) -> bool:
    try:
        text = render(messages, tools, generate=False)
    except AuthorError:
        return False
    return what in text and (never is None or never not in text)

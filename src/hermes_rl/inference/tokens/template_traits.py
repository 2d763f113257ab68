"""Detects what a chat template supports by rendering probe conversations.

A template's source is never inspected, so an unknown template works like any other. The probes use random sentinels,
so that no message can contain them.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from hermes_rl.core.errors import EnvironmentCodeError
from hermes_rl.core.messages import Message
from hermes_rl.inference.tokens.chat_format import Tools

PROBE_ID, LONG_ID = "probe0001", "call_0123456789abcdef01234567"


class Render(Protocol):
    def __call__(self, messages: Sequence[Message], tools: Tools | None, *, generate: bool = True) -> str:
        """Render the text, with a generation prompt if `generate`; raises if the template refuses the messages."""
        ...


class TemplateProbes:
    """Random sentinels, and the shortest messages and tool that contain them.

    `turn` marks the turn under test, `past` everything around it, and `kept` hides reasoning from the template.
    """

    def __init__(self) -> None:
        # Random per format: an agent may be reading this file.
        nonce = secrets.token_hex(6)
        self.turn, self.past, self.kept = f"turn{nonce}", f"past{nonce}", f"keep{nonce}"
        self.user: Message = {"role": "user", "content": f"{self.past}U"}
        self.assistant: Message = {"role": "assistant", "content": self.turn}
        parameters = {"type": "object", "properties": {"name": {"type": "string", "description": self.past}}}
        function = {"name": f"{self.past}tool", "description": self.past, "parameters": parameters}
        self.tool: dict[str, Any] = {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Traits:
    """What a template supports."""

    system: bool
    tools: bool
    calls: int
    """How many calls it shows per message; 2 stands for any number."""
    objects: bool
    """It takes call arguments as an object; otherwise as text."""
    texts: bool
    """It accepts call arguments as text."""
    content_with_calls: bool
    """It keeps the content of a message that has calls."""
    results_without_calls: bool
    """It accepts a tool result after a message without calls."""
    long_ids: bool
    tool_role: bool
    reasoning: bool


def detect_traits(render: Render, probes: TemplateProbes) -> Traits:
    user, assistant, turn, past = probes.user, probes.assistant, probes.turn, probes.past
    shows = partial(_shows, render)
    tools = [probes.tool] if shows([user], f"{past}tool", [probes.tool]) else None

    def calling(*arguments: Any, content: str = "", call_id: str = PROBE_ID) -> Message:
        calls = [
            {"id": call_id, "type": "function", "function": {"name": past, "arguments": each}} for each in arguments
        ]
        return {"role": "assistant", "content": content, "tool_calls": calls}

    first, second = {"key": f"{turn}1"}, {"key": f"{turn}2"}
    objects = shows([user, calling(first)], f"{turn}1", tools, never="'key'")
    texts = shows([user, calling(json.dumps(first))], f"{turn}1", tools)
    arguments, others = (first, second) if objects else (json.dumps(first), json.dumps(second))
    both = [user, calling(arguments, others)]
    listed = objects or texts
    many = listed and all(shows(both, f"{turn}{number}", tools) for number in (1, 2))
    call_message = calling(arguments) if listed else assistant
    answered: Message = {"role": "tool", "tool_call_id": PROBE_ID, "name": past, "content": f"{past}T"}
    tool_role = shows([user, call_message, answered], f"{past}T", tools)
    answer = answered if tool_role else {"role": "user", "content": f"{past}T"}
    return Traits(
        system=shows([{"role": "system", "content": turn}, user], turn, tools),
        tools=tools is not None,
        calls=0 if not listed else 2 if many else 1,
        objects=objects,
        texts=texts,
        content_with_calls=listed and shows([user, calling(arguments, content=f"{turn}C")], f"{turn}C", tools),
        results_without_calls=shows([user, assistant, answer, assistant, user], f"{past}T", tools),
        long_ids=listed and shows([user, calling(arguments, call_id=LONG_ID)], f"{turn}1", tools),
        tool_role=tool_role,
        reasoning=shows([user, {**assistant, "reasoning_content": f"{turn}R"}], f"{turn}R", tools),
    )


def generation_prompt(render: Render, probes: TemplateProbes) -> str:
    """What the template appends for the model to continue from."""
    closed = render([probes.user], None, generate=False)
    return render([probes.user], None).removeprefix(closed)


def _shows(
    render: Render, messages: Sequence[Message], what: str, tools: Tools | None, never: str | None = None
) -> bool:
    try:
        text = render(messages, tools, generate=False)
    except EnvironmentCodeError:
        return False
    return what in text and (never is None or never not in text)

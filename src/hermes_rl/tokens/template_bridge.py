"""TemplateBridge: the text with which a chat template goes on after a turn that the model has sampled.

Always true: it is the end of a render of a made-up conversation of the same shape with the new messages behind it, so
its cost does not grow with the history; the first of each shape is held against a render of the true one.
"""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from hermes_rl.messages import Message, ToolCall, content_text, tool_calls
from hermes_rl.tokens.chat_format import Tools
from hermes_rl.tokens.chat_template import ChatTemplate
from hermes_rl.tokens.template_traits import PROBE_ID
from hermes_rl.tokens.thinking import CLOSE, OPEN, reasoning_of, tags_in


class Shape(NamedTuple):
    """What of a conversation decides how a template goes on after its last turn."""

    system: bool
    tools: bool
    earlier_thought: bool
    """There is thinking before the last user message."""
    cycle: str
    """`` when the turn answers a user, `tools` after tool results, `thought` after some that thinking led to."""
    thinking: str
    """Where the turn has its thinking: `field`, `inline` with its tags, `closed` with the second only, `` for none."""
    content: bool
    calls: int


class TemplateBridge:
    def __init__(self, template: ChatTemplate, stops: Iterable[str]) -> None:
        """`stops` are the texts a turn can end with."""
        self._template = template
        self._turn, self._past = template.made_up.turn, template.made_up.past
        longest_first = sorted(stops, key=len, reverse=True)
        self._stop = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._befores: dict[Shape, str] = {}
        self._markers: dict[tuple[Shape, tuple[tuple[str, int], ...]], str | None] = {}

    def tail(self, history: Sequence[Message], new: Sequence[Message], tools: Tools) -> str | None:
        """The text from the last turn's end on; None when what stands before would change, or nobody can tell."""
        names = {call.id: call.name for call in tool_calls(history[-1:])}
        following = self._template.adapted(new, names)
        last = self._template.assistant(history[-1])
        shape = self._shape(history, last, tools)
        probe, shown = self._probe(shape, last), self._shown(shape)
        text = self._template.render([*self._skeleton(shape), probe, *following], shown)
        if not self._begins(text, shape) or not all(part in text for part in _sentinels(probe, self._turn)):
            return None
        end = self._stop.search(text, text.rfind(self._turn))
        if end is None or self._past in text[end.start() :]:
            return None
        tail = text[end.start() :]
        key = shape, tuple((role, min(len(list(run)), 2)) for role, run in groupby(one["role"] for one in following))
        if key not in self._markers:
            self._markers[key] = (
                self._marker(shape, probe, following[0]) if self._holds(history, new, tools, tail) else None
            )
        return tail if self._markers[key] == end.group() else None

    # --- the conversation in short ---

    def _shape(self, history: Sequence[Message], last: Message, tools: Tools) -> Shape:
        """A new one for each kind of conversation there is, so few in all."""
        told, traits = self._template.tells_of(tools), self._template.traits
        told_in_system = told and traits.system and not traits.tools
        before = history[:-1]
        asked = next((place for place in reversed(range(len(before))) if before[place].get("role") == "user"), 0)
        cycle = "tools" if before and before[-1].get("role") == "tool" else ""
        cycle = "thought" if any(map(self._thought, before[asked:])) else cycle
        return Shape(
            system=[one.get("role") for one in before[:1]] == ["system"] or told_in_system,
            tools=told and traits.tools,
            earlier_thought=any(map(self._thought, before[:asked])),
            cycle=cycle,
            thinking="field" if "reasoning_content" in last else tags_in(last["content"]),
            content=bool(last["content"].strip()) or not last.get("tool_calls"),
            calls=min(len(last.get("tool_calls") or ()), 2),
        )

    def _thought(self, message: Message) -> bool:
        return message.get("role") == "assistant" and (
            (self._template.traits.reasoning and bool(reasoning_of(message)))
            or CLOSE in content_text(message.get("content"))
        )

    def _skeleton(self, shape: Shape) -> list[Message]:
        """A short made-up conversation for the turn to end."""
        user = self._template.made_up.user
        messages: list[Message] = [{"role": "system", "content": f"{self._past}S"}] if shape.system else []
        messages.append(user)
        if shape.earlier_thought:
            messages += [self._thinks(), user]
        if shape.cycle:
            called = self._thinks() if shape.cycle == "thought" else {"role": "assistant", "content": ""}
            call = ToolCall.make(self._past, json.dumps({"name": self._past}), PROBE_ID).as_dict()
            messages += [
                {**called, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": PROBE_ID, "content": f"{self._past}T"},
            ]
        return self._template.adapted(messages)

    def _thinks(self) -> Message:
        if self._template.traits.reasoning:
            return {"role": "assistant", "content": "", "reasoning_content": f"{self._past}R"}
        return {"role": "assistant", "content": f"{self._past}R{CLOSE}{self._past}A"}

    def _probe(self, shape: Shape, last: Message) -> Message:
        """The last turn with the same calls, and made-up words in it."""
        probe: Message = {"role": "assistant", "content": f"{self._turn}C" if shape.content else ""}
        if shape.thinking == "field":
            probe["reasoning_content"] = f"{self._turn}R"
        elif shape.thinking:
            opened = OPEN if shape.thinking == "inline" else ""
            probe["content"] = f"{opened}{self._turn}R{CLOSE}{probe['content']}"
        if calls := last.get("tool_calls"):
            made_up = {"name": f"{self._turn}A"}
            arguments = made_up if self._template.traits.objects else json.dumps(made_up)
            probe["tool_calls"] = [
                {**call, "function": {"name": call["function"]["name"], "arguments": arguments}} for call in calls
            ]
        return probe

    def _shown(self, shape: Shape) -> Tools | None:
        return [self._template.made_up.tool] if shape.tools else None

    # --- whether it can be trusted ---

    def _begins(self, text: str, shape: Shape) -> bool:
        """Whether the text begins with what the model was given before its turn."""
        key = shape._replace(thinking="", content=False, calls=0)
        if key in self._befores and text.startswith(self._befores[key]):
            return True
        # Again, for a template may write the date.
        self._befores[key] = self._template.render(self._skeleton(shape), self._shown(shape))
        return text.startswith(self._befores[key])

    def _marker(self, shape: Shape, probe: Message, first: Message) -> str | None:
        """What ends the turn when such a message follows: the first stop between the two; None when there is none."""
        following = {**first, "content": f"{self._past}N"}
        text = self._template.render([*self._skeleton(shape), probe, following], self._shown(shape))
        end = self._stop.search(text, text.rfind(self._turn), max(text.find(f"{self._past}N"), 0))
        return end and end.group()

    def _holds(self, history: Sequence[Message], new: Sequence[Message], tools: Tools, tail: str) -> bool:
        """Whether the true conversation ends the same way, and begins with what the turn was given."""
        whole = self._template.transcript([*history, *new], tools)
        return whole.endswith(tail) and whole.startswith(self._template.transcript(history[:-1], tools))


def _sentinels(probe: Message, word: str) -> list[str]:
    """The made-up words of the turn that the template has to show."""
    thinks = "reasoning_content" in probe or CLOSE in probe["content"]
    parts = {"R": thinks, "C": f"{word}C" in probe["content"], "A": bool(probe.get("tool_calls"))}
    return [word + letter for letter, there in parts.items() if there]

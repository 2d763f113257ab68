"""TemplateBridge: the text with which a chat template continues after a turn that the model sampled.

The text is the end of a render of a short probe conversation of the same shape, followed by the new messages, so the
cost does not grow with the history. The first text for each shape is verified against the real conversation.
"""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from hermes_rl.core.messages import Message, ToolCall, content_text, tool_calls
from hermes_rl.inference.tokens.chat_format import Tools
from hermes_rl.inference.tokens.chat_template import ChatTemplate
from hermes_rl.inference.tokens.reasoning import CLOSE, OPEN, reasoning_of, reasoning_tags
from hermes_rl.inference.tokens.template_traits import PROBE_ID


class Shape(NamedTuple):
    """The properties of a conversation that decide how a template continues after its last turn."""

    system: bool
    tools: bool
    earlier_reasoning: bool
    """There is reasoning before the last user message."""
    cycle: str
    """`` when the turn answers a user, `tools` after tool results, `reasoning` after results that reasoning led to."""
    reasoning_form: str
    """The turn's reasoning: `field`, `inline` with both tags, `closed` with the closing tag only, `` without any."""
    content: bool
    calls: int


class TemplateBridge:
    def __init__(self, template: ChatTemplate, stops: Iterable[str]) -> None:
        """`stops` are the texts that can end a turn."""
        self._template = template
        self._turn, self._past = template.probes.turn, template.probes.past
        longest_first = sorted(stops, key=len, reverse=True)
        self._stop = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._prefixes: dict[Shape, str] = {}
        self._markers: dict[tuple[Shape, tuple[tuple[str, int], ...]], str | None] = {}

    def tail(self, history: Sequence[Message], new: Sequence[Message], tools: Tools) -> str | None:
        """The text from the end of the last turn on; None if the text before it would change, or may change."""
        names = {call.id: call.name for call in tool_calls(history[-1:])}
        following = self._template.adapt(new, names)
        last = self._template.adapt_assistant(history[-1])
        shape = self._shape(history, last, tools)
        probe, shown = self._probe(shape, last), self._shown(shape)
        text = self._template.render([*self._skeleton(shape), probe, *following], shown)
        if not self._has_prefix(text, shape) or not all(part in text for part in _sentinels(probe, self._turn)):
            return None
        end = self._stop.search(text, text.rfind(self._turn))
        if end is None or self._past in text[end.start() :]:
            return None
        tail = text[end.start() :]
        runs = groupby(message["role"] for message in following)
        key = shape, tuple((role, min(len(list(run)), 2)) for role, run in runs)
        if key not in self._markers:
            self._markers[key] = (
                self._marker(shape, probe, following[0]) if self._is_verified(history, new, tools, tail) else None
            )
        return tail if self._markers[key] == end.group() else None

    # --- the probe conversation ---

    def _shape(self, history: Sequence[Message], last: Message, tools: Tools) -> Shape:
        """There are few shapes: one for each kind of conversation."""
        explained, traits = self._template.explains_tools(tools), self._template.traits
        explained_in_system = explained and traits.system and not traits.tools
        before = history[:-1]
        last_user = next((index for index in reversed(range(len(before))) if before[index].get("role") == "user"), 0)
        cycle = "tools" if before and before[-1].get("role") == "tool" else ""
        cycle = "reasoning" if any(map(self._has_reasoning, before[last_user:])) else cycle
        return Shape(
            system=[message.get("role") for message in before[:1]] == ["system"] or explained_in_system,
            tools=explained and traits.tools,
            earlier_reasoning=any(map(self._has_reasoning, before[:last_user])),
            cycle=cycle,
            reasoning_form="field" if "reasoning_content" in last else reasoning_tags(last["content"]),
            content=bool(last["content"].strip()) or not last.get("tool_calls"),
            calls=min(len(last.get("tool_calls") or ()), 2),
        )

    def _has_reasoning(self, message: Message) -> bool:
        return message.get("role") == "assistant" and (
            (self._template.traits.reasoning and bool(reasoning_of(message)))
            or CLOSE in content_text(message.get("content"))
        )

    def _skeleton(self, shape: Shape) -> list[Message]:
        """A short probe conversation up to the turn."""
        user = self._template.probes.user
        messages: list[Message] = [{"role": "system", "content": f"{self._past}S"}] if shape.system else []
        messages.append(user)
        if shape.earlier_reasoning:
            messages += [self._reasoning_turn(), user]
        if shape.cycle:
            called = self._reasoning_turn() if shape.cycle == "reasoning" else {"role": "assistant", "content": ""}
            call = ToolCall.make(self._past, json.dumps({"name": self._past}), PROBE_ID).as_dict()
            messages += [
                {**called, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": PROBE_ID, "content": f"{self._past}T"},
            ]
        return self._template.adapt(messages)

    def _reasoning_turn(self) -> Message:
        if self._template.traits.reasoning:
            return {"role": "assistant", "content": "", "reasoning_content": f"{self._past}R"}
        return {"role": "assistant", "content": f"{self._past}R{CLOSE}{self._past}A"}

    def _probe(self, shape: Shape, last: Message) -> Message:
        """The last turn with the same calls, and with sentinels as text."""
        probe: Message = {"role": "assistant", "content": f"{self._turn}C" if shape.content else ""}
        if shape.reasoning_form == "field":
            probe["reasoning_content"] = f"{self._turn}R"
        elif shape.reasoning_form:
            opened = OPEN if shape.reasoning_form == "inline" else ""
            probe["content"] = f"{opened}{self._turn}R{CLOSE}{probe['content']}"
        if calls := last.get("tool_calls"):
            probes = {"name": f"{self._turn}A"}
            arguments = probes if self._template.traits.objects else json.dumps(probes)
            probe["tool_calls"] = [
                {**call, "function": {"name": call["function"]["name"], "arguments": arguments}} for call in calls
            ]
        return probe

    def _shown(self, shape: Shape) -> Tools | None:
        return [self._template.probes.tool] if shape.tools else None

    # --- verification ---

    def _has_prefix(self, text: str, shape: Shape) -> bool:
        """Whether the text starts with the prompt of the turn."""
        key = shape._replace(reasoning_form="", content=False, calls=0)
        if key in self._prefixes and text.startswith(self._prefixes[key]):
            return True
        # Render again: a template may write the date.
        self._prefixes[key] = self._template.render(self._skeleton(shape), self._shown(shape))
        return text.startswith(self._prefixes[key])

    def _marker(self, shape: Shape, probe: Message, first: Message) -> str | None:
        """The first stop between the turn and such a message, which ends the turn; None if there is none."""
        following = {**first, "content": f"{self._past}N"}
        text = self._template.render([*self._skeleton(shape), probe, following], self._shown(shape))
        end = self._stop.search(text, text.rfind(self._turn), max(text.find(f"{self._past}N"), 0))
        return end and end.group()

    def _is_verified(self, history: Sequence[Message], new: Sequence[Message], tools: Tools, tail: str) -> bool:
        """Whether the real conversation has the same tail, and starts with the prompt of the turn."""
        whole = self._template.transcript([*history, *new], tools)
        return whole.endswith(tail) and whole.startswith(self._template.transcript(history[:-1], tools))


def _sentinels(probe: Message, word: str) -> list[str]:
    """The sentinels of the turn that the template has to show."""
    has_reasoning = "reasoning_content" in probe or CLOSE in probe["content"]
    parts = {"R": has_reasoning, "C": f"{word}C" in probe["content"], "A": bool(probe.get("tool_calls"))}
    return [word + letter for letter, there in parts.items() if there]

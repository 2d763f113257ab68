"""Reasoning in a message: in its own field or between tags in the text, and how to keep it in a template's output.

Text that is not marked as reasoning is content; reasoning that is never closed runs to the end. For plain text from a
chat endpoint see agent/reasoning.py.
"""

import re
from itertools import takewhile
from typing import NamedTuple

from hermes_rl.core.messages import Message
from hermes_rl.inference.tokens.template_traits import Render, TemplateProbes, generation_prompt

OPEN, CLOSE = "<think>", "</think>"


def reasoning_of(message: Message) -> str:
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def reasoning_tags(content: str) -> str:
    """How reasoning is marked in the text: `inline`, `closed` when there is only the closing tag, `` when unmarked."""
    before, closed, _ = content.partition(CLOSE)
    return "" if not closed else "inline" if OPEN in before else "closed"


def split_reasoning(text: str, *, opened: bool) -> tuple[str | None, str]:
    """(the reasoning or None, the rest). `opened`: the prompt ends with the opening tag."""
    start = text.lstrip()
    if start.startswith(OPEN):
        text = start.removeprefix(OPEN)
    elif not opened and (CLOSE not in text or OPEN in text.partition(CLOSE)[0]):
        return None, text
    reasoning, _, rest = text.partition(CLOSE)
    reasoning = reasoning.strip("\n")
    return (reasoning if reasoning.strip() else None), rest.lstrip("\n")


class KeptReasoning(NamedTuple):
    """Gets reasoning past a template that drops it: hidden behind sentinels, which are replaced afterwards."""

    opened: str
    closed: str
    tag: str
    """Stands for a closing tag that stays where it is."""
    bare: re.Pattern[str]
    """`opened`, with what the template writes before a turn without reasoning."""
    lead: str
    middle: str
    """What the template writes before and after reasoning."""
    prefill: str
    """The opening tag, if it is part of the prompt."""

    @classmethod
    def detect(cls, render: Render, probes: TemplateProbes, *, reasoning: bool) -> "KeptReasoning":
        """`reasoning`: the template has its own field for reasoning."""
        opened, closed, tag = (probes.kept + letter for letter in "OXV")
        if not reasoning:
            prompt = generation_prompt(render, probes)
            trimmed = prompt.rstrip()
            prefill = prompt[len(trimmed) - len(OPEN) :] if trimmed.endswith(OPEN) else ""
            return cls(opened, closed, tag, re.compile(opened), "", "", prefill)
        user, assistant, turn = probes.user, probes.assistant, probes.turn
        reasoning_turn = {"role": "assistant", "content": f"{turn}C", "reasoning_content": f"{turn}R"}
        full, _, rest = render([user, reasoning_turn], None, generate=False).partition(f"{turn}R")
        bare = render([user, assistant, user], None, generate=False).partition(turn)[0]
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(full, bare, strict=False))))
        middle = rest.partition(f"{turn}C")[0]
        pattern = re.compile(f"(?:{re.escape(bare[shared:])})?{opened}")
        return cls(opened, closed, tag, pattern, full[shared:], middle, prefill="")

    def hide(self, message: Message) -> Message:
        if message["role"] != "assistant":
            return message
        content = message["content"]
        if reasoning_tags(content) == "closed":
            content = self.prefill + content
        content = content.replace(CLOSE, self.tag)
        if reasoning := message.get("reasoning_content"):
            content = self.opened + reasoning.replace(CLOSE, self.tag) + self.closed + content
        return {**message, "content": content, "reasoning_content": ""}

    def show(self, text: str) -> str:
        text = self.bare.sub(lambda _: self.lead, text)
        text = re.sub(rf"{self.closed}\n?", lambda _: self.middle, text)
        return text.replace(self.tag, CLOSE)

"""Thinking in a message: in a field of its own or between tags in its text, and how it gets past a template.

Always true: what is not marked as thinking is said, and what is never closed is all thinking.
"""

import re
from itertools import takewhile
from typing import NamedTuple

from hermes_rl.messages import Message
from hermes_rl.tokens.template_traits import MadeUp, Render, generation_prompt

OPEN, CLOSE = "<think>", "</think>"


def reasoning_of(message: Message) -> str:
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def tags_in(content: str) -> str:
    """How thinking in the text is marked: `inline`, `closed` when it only ends there, or `` when there is none."""
    before, closed, _ = content.partition(CLOSE)
    return "" if not closed else "inline" if OPEN in before else "closed"


def split_thinking(text: str, *, opened: bool) -> tuple[str | None, str]:
    """(the thinking or None, the rest). `opened`: the prompt ends in the tag."""
    start = text.lstrip()
    if start.startswith(OPEN):
        text = start.removeprefix(OPEN)
    elif not opened and (CLOSE not in text or OPEN in text.partition(CLOSE)[0]):
        return None, text
    thought, _, rest = text.partition(CLOSE)
    thought = thought.strip("\n")
    return (thought if thought.strip() else None), rest.lstrip("\n")


class KeptThinking(NamedTuple):
    """How thinking gets past a template that drops it: as other words, for which its own are put in afterwards."""

    opened: str
    closed: str
    tag: str
    """Stands for a closing tag that is left where it is."""
    bare: re.Pattern[str]
    """`opened`, with what the template writes before a turn that has no thinking."""
    lead: str
    middle: str
    """What the template writes before and after thinking."""
    prefill: str
    """The opening tag, where it is part of the prompt."""

    @classmethod
    def found(cls, render: Render, made_up: MadeUp, *, reasoning: bool) -> "KeptThinking":
        """`reasoning`: the template has a place of its own for thinking."""
        opened, closed, tag = (made_up.kept + letter for letter in "OXV")
        if not reasoning:
            prompt = generation_prompt(render, made_up)
            trimmed = prompt.rstrip()
            prefill = prompt[len(trimmed) - len(OPEN) :] if trimmed.endswith(OPEN) else ""
            return cls(opened, closed, tag, re.compile(opened), "", "", prefill)
        user, said, turn = made_up.user, made_up.said, made_up.turn
        thought = {"role": "assistant", "content": f"{turn}C", "reasoning_content": f"{turn}R"}
        full, _, rest = render([user, thought], None, generate=False).partition(f"{turn}R")
        bare = render([user, said, user], None, generate=False).partition(turn)[0]
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(full, bare, strict=False))))
        middle = rest.partition(f"{turn}C")[0]
        pattern = re.compile(f"(?:{re.escape(bare[shared:])})?{opened}")
        return cls(opened, closed, tag, pattern, full[shared:], middle, prefill="")

    def hide(self, message: Message) -> Message:
        if message["role"] != "assistant":
            return message
        content = message["content"]
        if tags_in(content) == "closed":
            content = self.prefill + content
        content = content.replace(CLOSE, self.tag)
        if reasoning := message.get("reasoning_content"):
            content = self.opened + reasoning.replace(CLOSE, self.tag) + self.closed + content
        return {**message, "content": content, "reasoning_content": ""}

    def show(self, text: str) -> str:
        text = self.bare.sub(lambda _: self.lead, text)
        text = re.sub(rf"{self.closed}\n?", lambda _: self.middle, text)
        return text.replace(self.tag, CLOSE)

"""A model's text and the markers of its format, parsed from left to right by a cursor that never moves back.

Reasoning holds no calls: markers inside `<think>…</think>` are plain text. A call in reasoning that is never closed is
reported as broken, because the model's intent is unclear.
"""

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.parser import BrokenCall, ParsedText

THINK, THINK_END = "<think>", "</think>"
UNCLOSED = f"it is inside {THINK}, which was never closed with {THINK_END}"
# No turn needs more; a model that writes more is in a loop.
MAX_CALLS = 500
TOO_MANY = f"there are more than {MAX_CALLS} calls in one text, and this call and later ones were not parsed"
WHITESPACE = re.compile(r"\s*+")

ParsedCall: TypeAlias = ToolCall | BrokenCall
# Parses the calls at an opening marker and leaves the cursor after them; yields nothing when there is no call.
CallParser: TypeAlias = "Callable[[MarkedText, re.Match[str]], Iterable[ParsedCall]]"


class CallParseError(Exception):
    """The current call cannot be parsed. Never raised out of a parser."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(reason)
        self.broken = BrokenCall(text, reason)


def markers(*literals: str) -> re.Pattern[str]:
    """A pattern for these markers and the reasoning tags."""
    return re.compile("|".join(re.escape(literal) for literal in (THINK, THINK_END, *literals)))


class MarkedText:
    """The text, the cursor position, and the next marker from there."""

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self.text = text
        self.position = 0
        self._pattern = pattern
        self._next_marker = pattern.search(text)

    @property
    def next_marker(self) -> re.Match[str] | None:
        """The next marker, without consuming it."""
        if self._next_marker is not None and self._next_marker.start() < self.position:
            self._next_marker = self._pattern.search(self.text, self.position)
        return self._next_marker

    @property
    def next_marker_start(self) -> int:
        """Where the next marker begins; the end of the text if there is none."""
        return len(self.text) if (mark := self.next_marker) is None else mark.start()

    def next(self) -> re.Match[str] | None:
        """Return the next marker and consume it."""
        if mark := self.next_marker:
            self.position = mark.end()
        return mark

    def skip_to(self, *stops: str) -> re.Match[str] | None:
        """Move to the next of the stops and return it; without one, move to the end of the text."""
        while (mark := self.next_marker) and mark.group() not in stops:
            self.position = mark.end()
        self.position = self.next_marker_start
        return mark

    def skip_space(self) -> None:
        self.position = WHITESPACE.match(self.text, self.position).end()  # type: ignore[union-attr]

    def consume(self, literal: str) -> bool:
        """Consume the literal if the text continues with it."""
        found = self.text.startswith(literal, self.position)
        if found:
            self.position += len(literal)
        return found


def parse_calls(marked: MarkedText, openers: frozenset[str], parse_call: CallParser) -> ParsedText:
    """Call `parse_call` at each opening marker outside reasoning, and keep the text around the calls.

    Text in which `parse_call` finds no call is kept. A marker that opens nothing is dropped if the text has calls.
    """
    text = marked.text
    calls: list[ToolCall] = []
    broken: list[BrokenCall] = []
    content: list[str] = []
    content_start, attempts, reasoning_closed = 0, 0, False
    while mark := marked.next():
        if mark.group() == THINK:
            end = text.find(THINK_END, marked.position)
            if end < 0:
                broken += _calls_in_unclosed_reasoning(marked, openers, parse_call)
                break
            marked.position, reasoning_closed = end + len(THINK_END), True
        elif mark.group() == THINK_END:
            if not reasoning_closed:
                # The template opened the reasoning, so everything before it was reasoning.
                calls, broken, content, content_start, reasoning_closed = [], [], [], 0, True
        elif mark.group() not in openers:
            content.append(text[content_start : mark.start()])
            content_start = mark.end()
        elif (attempts := attempts + 1) > MAX_CALLS:
            content.append(text[content_start : mark.start()])
            content_start = len(text)
            broken.append(BrokenCall(text[mark.start() :], TOO_MANY))
            break
        elif results := _parse_at(marked, mark, parse_call):
            content.append(text[content_start : mark.start()])
            content_start = marked.position
            calls += [result for result in results if isinstance(result, ToolCall)]
            broken += [result for result in results if isinstance(result, BrokenCall)]
    if not calls and not broken:
        return ParsedText(content=text)
    return ParsedText("".join((*content, text[content_start:])).strip(), tuple(calls), tuple(broken))


def _parse_at(marked: MarkedText, opener: re.Match[str], parse_call: CallParser) -> list[ParsedCall]:
    try:
        return list(parse_call(marked, opener))
    except CallParseError as error:
        return [error.broken]


def _calls_in_unclosed_reasoning(
    marked: MarkedText, openers: frozenset[str], parse_call: CallParser
) -> Iterable[BrokenCall]:
    attempts = 0
    while (mark := marked.next()) and attempts < MAX_CALLS:
        if mark.group() in openers:
            attempts += 1
            if _parse_at(marked, mark, parse_call):
                yield BrokenCall(marked.text[mark.start() : marked.position], UNCLOSED)

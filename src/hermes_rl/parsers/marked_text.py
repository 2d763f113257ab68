"""A model's text with the markers of its format, read from left to right by a cursor that never goes back.

Thinking is not calling: markers inside `<think>…</think>` are words. A call in thinking that never ends is reported as
broken, since nobody can tell whether the model meant it.
"""

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from hermes_rl.core.messages import ToolCall
from hermes_rl.parsers.parser import BrokenCall, ParsedText

THINK, UNTHINK = "<think>", "</think>"
UNENDED = f"it stands in {THINK} that was never closed with {UNTHINK}"
# A model in a loop; no turn needs more, and nobody should run them.
MOST = 500
TOO_MANY = f"there are more than {MOST} calls in one text, and this one and those behind it were not read"
WHITESPACE = re.compile(r"\s*+")

Read: TypeAlias = ToolCall | BrokenCall
Reader: TypeAlias = "Callable[[MarkedText, re.Match[str]], Iterable[Read]]"


class UnreadableError(Exception):
    """The call that is being read cannot be; never leaves a parser."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(reason)
        self.broken = BrokenCall(text, reason)


def markers(*literals: str) -> re.Pattern[str]:
    """Finds any of these, and the ends of thinking."""
    return re.compile("|".join(re.escape(literal) for literal in (THINK, UNTHINK, *literals)))


class MarkedText:
    """The text, the place reached in it, and the next marker from there."""

    def __init__(self, text: str, pattern: re.Pattern[str]) -> None:
        self.text = text
        self.here = 0
        self._pattern = pattern
        self._ahead = pattern.search(text)

    @property
    def ahead(self) -> re.Match[str] | None:
        """The next marker, not passed yet."""
        if self._ahead is not None and self._ahead.start() < self.here:
            self._ahead = self._pattern.search(self.text, self.here)
        return self._ahead

    @property
    def ahead_at(self) -> int:
        """Where the next marker begins; the end of the text when there is none."""
        return len(self.text) if (mark := self.ahead) is None else mark.start()

    def next(self) -> re.Match[str] | None:
        """The next marker, passed now."""
        if mark := self.ahead:
            self.here = mark.end()
        return mark

    def pass_to(self, *stops: str) -> re.Match[str] | None:
        """Pass all before the next of the stops, which is given back; else to the end of the text."""
        while (mark := self.ahead) and mark.group() not in stops:
            self.here = mark.end()
        self.here = self.ahead_at
        return mark

    def skip_space(self) -> None:
        self.here = WHITESPACE.match(self.text, self.here).end()  # type: ignore[union-attr]

    def passes(self, literal: str) -> bool:
        """Pass the literal if the text goes on with it."""
        found = self.text.startswith(literal, self.here)
        if found:
            self.here += len(literal)
        return found


def read_calls(marked: MarkedText, openers: frozenset[str], read: Reader) -> ParsedText:
    """Hand each opening marker outside of thinking to `read`, and keep the text around the calls.

    `read` leaves the cursor where the text goes on; what it finds no call in stays text. A marker that opens nothing is
    dropped when there are calls.
    """
    text = marked.text
    calls: list[ToolCall] = []
    broken: list[BrokenCall] = []
    said: list[str] = []
    kept, reads, thought = 0, 0, False
    while mark := marked.next():
        if mark.group() == THINK:
            end = text.find(UNTHINK, marked.here)
            if end < 0:
                broken += _thoughts(marked, openers, read)
                break
            marked.here, thought = end + len(UNTHINK), True
        elif mark.group() == UNTHINK:
            if not thought:
                # The template opened the thinking, so all that came before was thought.
                calls, broken, said, kept, thought = [], [], [], 0, True
        elif mark.group() not in openers:
            said.append(text[kept : mark.start()])
            kept = mark.end()
        elif (reads := reads + 1) > MOST:
            said.append(text[kept : mark.start()])
            kept = len(text)
            broken.append(BrokenCall(text[mark.start() :], TOO_MANY))
            break
        elif results := _results(marked, mark, read):
            said.append(text[kept : mark.start()])
            kept = marked.here
            calls += [result for result in results if isinstance(result, ToolCall)]
            broken += [result for result in results if isinstance(result, BrokenCall)]
    if not calls and not broken:
        return ParsedText(content=text)
    return ParsedText("".join((*said, text[kept:])).strip(), tuple(calls), tuple(broken))


def _results(marked: MarkedText, opener: re.Match[str], read: Reader) -> list[Read]:
    try:
        return list(read(marked, opener))
    except UnreadableError as error:
        return [error.broken]


def _thoughts(marked: MarkedText, openers: frozenset[str], read: Reader) -> Iterable[BrokenCall]:
    reads = 0
    while (mark := marked.next()) and reads < MOST:
        if mark.group() in openers:
            reads += 1
            if _results(marked, mark, read):
                yield BrokenCall(marked.text[mark.start() : marked.here], UNENDED)

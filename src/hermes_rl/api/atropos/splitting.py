"""JSON text cut into the values of its members before any of them is read.

A parser holds the interpreter from the first byte to the last, 30 ms for a group of 16×8,192 tokens and 120 ms for four
times as many, and no other request is answered meanwhile. Cut into columns and those into sequences, the pieces take
less than one. Always true: when the pieces are JSON, so is the whole; every byte is looked at a few times at most; what
cannot be cut raises ValueError.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from hermes_rl import jsontext

MOST_ELEMENTS = 65_535
DEEPEST = 500
SPACE = re.compile(rb"[ \t\n\r]*")
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
OPENING, CLOSING = b"[{", b"]}"
SCALAR = re.compile(rb"[^][{}\",: \t\n\r]+")

Text: TypeAlias = "memoryview[int]"


@dataclass(frozen=True, slots=True)
class Value:
    """A value as its text. `elements` are those of an array of arrays or objects, else None."""

    text: Text
    elements: tuple[Text, ...] | None = None


def split_object(text: bytes) -> dict[str, Value]:
    """The members of the object that the text is."""
    cutting = _Cutting(text)
    begin = cutting.skip(0)
    members, end = cutting.members(begin)
    cutting.finish(end)
    return members


def split_objects(text: bytes) -> Iterator[dict[str, Value]]:
    """The members of each object in the array that the text is."""
    cutting = _Cutting(text)
    at = cutting.skip(0)
    more = cutting.opens(at, b"[", b"]")
    at = cutting.skip(at + 1)
    while more:
        members, at = cutting.members(at)
        yield members
        more, at = cutting.goes_on(at, b"]")
    cutting.finish(at + 1)


class _Cutting:
    def __init__(self, text: bytes) -> None:
        self._text = text
        self._view: Text = memoryview(text)

    def members(self, at: int) -> tuple[dict[str, Value], int]:
        """The members of the object that begins here, and where it ends."""
        members: dict[str, Value] = {}
        more = self.opens(at, b"{", b"}")
        at = self.skip(at + 1)
        while more:
            name = STRING.match(self._text, at)
            if name is None:
                raise ValueError(f"a name in quotes is missing at byte {at}")
            at = self.skip(name.end())
            if not self._text.startswith(b":", at):
                raise ValueError(f"a colon is missing at byte {at}")
            value, at = self._value(self.skip(at + 1))
            members[str(jsontext.loads(name.group()))] = value
            more, at = self.goes_on(at, b"}")
        return members, at + 1

    def opens(self, at: int, opening: bytes, closing: bytes) -> bool:
        """Whether what begins here has anything in it."""
        if not self._text.startswith(opening, at):
            raise ValueError(f"{opening.decode()} is missing at byte {at}")
        return not self._text.startswith(closing, self.skip(at + 1))

    def goes_on(self, at: int, closing: bytes) -> tuple[bool, int]:
        """Whether another one follows the one that ended here, and where it, or the closing, stands."""
        at = self.skip(at)
        if self._text.startswith(b",", at):
            return True, self.skip(at + 1)
        if self._text.startswith(closing, at):
            return False, at
        raise ValueError(f"a comma or {closing.decode()} is missing at byte {at}")

    def skip(self, at: int) -> int:
        space = SPACE.match(self._text, at)
        return space.end() if space else at

    def finish(self, at: int) -> None:
        if self.skip(at) != len(self._text):
            raise ValueError(f"something follows the end at byte {at}")

    def _value(self, begin: int) -> tuple[Value, int]:
        if self._text.startswith(b"[", begin) and self._text.startswith((b"[", b"{"), self.skip(begin + 1)):
            return self._elements(begin)
        end = self._end(begin)
        return Value(self._view[begin:end]), end

    def _elements(self, begin: int) -> tuple[Value, int]:
        elements: list[Text] = []
        at = self.skip(begin + 1)
        more = True
        while more:
            end = self._end(at)
            elements.append(self._view[at:end])
            if len(elements) > MOST_ELEMENTS:
                raise ValueError(f"an array has more than {MOST_ELEMENTS} arrays or objects")
            more, at = self.goes_on(end, b"]")
        return Value(self._view[begin : at + 1], tuple(elements)), at + 1

    def _end(self, begin: int) -> int:
        """Where the value that begins here ends."""
        first = self._text[begin : begin + 1]
        if first == b"[":
            end = self._text.find(b"]", begin) + 1
            # Nearly always an array of numbers, and found at the speed of memory.
            if end and not any(self._text.find(mark, begin + 1, end) >= 0 for mark in (b"[", b'"', b"{")):
                return end
        if first in {b"[", b"{"}:
            return self._closing(begin)
        found = (STRING if first == b'"' else SCALAR).match(self._text, begin)
        if found is None:
            raise ValueError(f"a value is missing at byte {begin}")
        return found.end()

    def _closing(self, begin: int) -> int:
        depth = 0
        for mark in BRACKET.finditer(self._text, begin):
            kind = self._text[mark.start()]
            if kind in OPENING:
                depth += 1
                if depth > DEEPEST:
                    raise ValueError(f"what opens at byte {begin} is nested more than {DEEPEST} times")
            elif kind in CLOSING:
                depth -= 1
                if not depth:
                    return mark.end()
        raise ValueError(f"what opens at byte {begin} is not closed")

"""Where the parts of a JSON line stand, found without reading their values.

Always true: it makes no value and no copy, so a column of a million numbers costs the time to pass over it and no
memory; text that is no JSON raises ValueError.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}"]', re.DOTALL)
SCALAR = re.compile(rb"[^\s,\[\]{}\":]++")
BETWEEN = re.compile(rb"[\s,]*+")
COLON = re.compile(rb"\s*+:\s*+")
QUOTE, BACKSLASH = ord('"'), ord("\\")
OPEN, CLOSED = b"[{", b"]}"


class Span(NamedTuple):
    begin: int
    end: int

    def of(self, raw: bytes) -> bytes:
        return raw[self.begin : self.end]


class Member(NamedTuple):
    """One `"key": value` of an object; `begin` is where the key's quote is."""

    key: bytes
    begin: int
    value: Span


def members(raw: bytes, begin: int = 0) -> Iterator[Member]:
    """The members of the object that begins here, white space aside."""
    at = _opening(raw, begin, b"{")
    while True:
        at = _after(BETWEEN, raw, at)
        if raw[at : at + 1] == b"}":
            return
        key = STRING.match(raw, at)
        colon = COLON.match(raw, key.end()) if key else None
        if key is None or colon is None:
            raise ValueError(f"no key at byte {at}")
        end = value_end(raw, colon.end())
        yield Member(raw[at + 1 : key.end() - 1], at, Span(colon.end(), end))
        at = end


def elements(raw: bytes, begin: int = 0) -> Iterator[Span]:
    """The elements of the array that begins here."""
    at = _opening(raw, begin, b"[")
    while True:
        at = _after(BETWEEN, raw, at)
        if raw[at : at + 1] == b"]":
            return
        end = value_end(raw, at)
        yield Span(at, end)
        at = end


def value_end(raw: bytes, begin: int) -> int:
    """Where the value ends that begins exactly here."""
    first = raw[begin : begin + 1]
    if first and first in OPEN:
        return _closing(raw, begin)
    found = (STRING if first == b'"' else SCALAR).match(raw, begin)
    if found is None:
        raise ValueError(f"no value at byte {begin}")
    return found.end()


def without(raw: bytes, begin: int, left_out: frozenset[bytes]) -> tuple[bytes, dict[bytes, Span]]:
    """The object that begins here as JSON without some of its members, and where the values of those stand."""
    kept: list[bytes] = []
    found: dict[bytes, Span] = {}
    for member in members(raw, begin):
        if member.key in left_out:
            found[member.key] = member.value
        else:
            kept.append(raw[member.begin : member.value.end])
    return b"{" + b",".join(kept) + b"}", found


def _opening(raw: bytes, begin: int, mark: bytes) -> int:
    at = _after(BETWEEN, raw, begin)
    if raw[at : at + 1] != mark:
        raise ValueError(f"no {mark.decode()} at byte {at}")
    return at + 1


def _closing(raw: bytes, begin: int) -> int:
    depth = 0
    for token in TOKEN.finditer(raw, begin):
        mark = raw[token.start()]
        if mark == QUOTE:
            if token.end() - token.start() == 1:
                break
        elif mark in OPEN:
            depth += 1
        else:
            depth -= 1
            if not depth:
                return token.end()
    raise ValueError(f"what begins at byte {begin} has no end")


def _after(pattern: "re.Pattern[bytes]", raw: bytes, at: int) -> int:
    found = pattern.match(raw, at)
    return found.end() if found else at

"""Finds the byte ranges of JSON members and elements without parsing their values.

Always true: it creates no values and no copies, so skipping a column of a million numbers takes time but no memory;
invalid JSON raises ValueError.
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


class ByteRange(NamedTuple):
    begin: int
    end: int

    def slice(self, raw: bytes) -> bytes:
        return raw[self.begin : self.end]


class JsonMember(NamedTuple):
    """One `"key": value` of an object; `begin` is the offset of the key's quote."""

    key: bytes
    begin: int
    value: ByteRange


def members(raw: bytes, begin: int = 0) -> Iterator[JsonMember]:
    """The members of the object at this offset, after white space."""
    at = _opening(raw, begin, b"{")
    while True:
        at = _skip(BETWEEN, raw, at)
        if raw[at : at + 1] == b"}":
            return
        key = STRING.match(raw, at)
        colon = COLON.match(raw, key.end()) if key else None
        if key is None or colon is None:
            raise ValueError(f"no key at byte {at}")
        end = value_end(raw, colon.end())
        yield JsonMember(raw[at + 1 : key.end() - 1], at, ByteRange(colon.end(), end))
        at = end


def elements(raw: bytes, begin: int = 0) -> Iterator[ByteRange]:
    """The elements of the array at this offset."""
    at = _opening(raw, begin, b"[")
    while True:
        at = _skip(BETWEEN, raw, at)
        if raw[at : at + 1] == b"]":
            return
        end = value_end(raw, at)
        yield ByteRange(at, end)
        at = end


def value_end(raw: bytes, begin: int) -> int:
    """The end of the value that starts exactly at this offset."""
    first = raw[begin : begin + 1]
    if first and first in OPEN:
        return _closing(raw, begin)
    found = (STRING if first == b'"' else SCALAR).match(raw, begin)
    if found is None:
        raise ValueError(f"no value at byte {begin}")
    return found.end()


def split_members(raw: bytes, begin: int, left_out: frozenset[bytes]) -> tuple[bytes, dict[bytes, ByteRange]]:
    """The object at this offset as JSON without the `left_out` members, and the byte ranges of their values."""
    kept: list[bytes] = []
    found: dict[bytes, ByteRange] = {}
    for member in members(raw, begin):
        if member.key in left_out:
            found[member.key] = member.value
        else:
            kept.append(raw[member.begin : member.value.end])
    return b"{" + b",".join(kept) + b"}", found


def _opening(raw: bytes, begin: int, mark: bytes) -> int:
    at = _skip(BETWEEN, raw, begin)
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
    raise ValueError(f"the value at byte {begin} has no end")


def _skip(pattern: "re.Pattern[bytes]", raw: bytes, at: int) -> int:
    found = pattern.match(raw, at)
    return found.end() if found else at

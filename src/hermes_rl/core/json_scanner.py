"""Byte ranges of the members and elements of JSON, found without parsing their values.

Always true: no value is created or copied; the time is linear in the number of bytes, whatever they are; text that
cannot be split raises ValueError. Inside a value only brackets and quotes are matched, so parse it before you trust it.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

# More than any record has, and less than a parser refuses.
MAX_DEPTH = 500
SPACE = re.compile(rb"[ \t\n\r]*+")
SCALAR = re.compile(rb"[^][{}\",: \t\n\r]++")
MARK = re.compile(rb'[][{}"]')
# `re` keeps a note of every repetition of a group, so a long string is matched in pieces. No possessive group (`)*+`):
# Python before 3.11.5 gets some of them wrong (gh-106052).
STRING_PIECE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+){0,500}', re.DOTALL)


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
    more, at = _open(raw, begin, b"{", b"}")
    while more:
        key_end = _string_end(raw, at)
        colon = skip_space(raw, key_end)
        if not raw.startswith(b":", colon):
            raise ValueError(f"expected a colon at byte {colon}")
        value = skip_space(raw, colon + 1)
        end = value_end(raw, value)
        yield JsonMember(raw[at + 1 : key_end - 1], at, ByteRange(value, end))
        more, at = _next(raw, end, b"}")


def elements(raw: bytes, begin: int = 0) -> Iterator[ByteRange]:
    """The elements of the array at this offset, after white space."""
    more, at = _open(raw, begin, b"[", b"]")
    while more:
        end = value_end(raw, at)
        yield ByteRange(at, end)
        more, at = _next(raw, end, b"]")


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


def value_end(raw: bytes, begin: int) -> int:
    """The end of the value that starts exactly at this offset."""
    if raw.startswith((b"[", b"{"), begin):
        return _closing(raw, begin)
    if raw.startswith(b'"', begin):
        return _string_end(raw, begin)
    scalar = SCALAR.match(raw, begin)
    if scalar is None:
        raise ValueError(f"expected a value at byte {begin}")
    return scalar.end()


def skip_space(raw: bytes, at: int) -> int:
    space = SPACE.match(raw, at)
    return space.end() if space else at


def _open(raw: bytes, begin: int, opening: bytes, closing: bytes) -> tuple[bool, int]:
    """Whether the array or object at this offset has an element, and where it starts."""
    at = skip_space(raw, begin)
    if not raw.startswith(opening, at):
        raise ValueError(f"expected {opening.decode()} at byte {at}")
    at = skip_space(raw, at + 1)
    return not raw.startswith(closing, at), at


def _next(raw: bytes, end: int, closing: bytes) -> tuple[bool, int]:
    """Whether another element follows the one that ends here, and where it starts."""
    at = skip_space(raw, end)
    if raw.startswith(b",", at):
        return True, skip_space(raw, at + 1)
    if raw.startswith(closing, at):
        return False, at
    raise ValueError(f"expected a comma or {closing.decode()} at byte {at}")


def _closing(raw: bytes, begin: int) -> int:
    depth, at, bracket = 0, begin, -1
    while mark := MARK.search(raw, at):
        at = mark.end()
        match mark.group():
            case b'"':
                at = _string_end(raw, mark.start())
                continue
            case b"{":
                depth += 1
            case b"[":
                # The next closing bracket is searched for once, also when many arrays open before it.
                if bracket < at and (bracket := raw.find(b"]", at)) < 0:
                    break
                if any(raw.find(other, at, bracket) >= 0 for other in (b"[", b'"', b"{")):
                    depth += 1
                else:
                    at = bracket + 1
            case _:
                depth -= 1
        if depth > MAX_DEPTH:
            raise ValueError(f"the value at byte {begin} is nested more than {MAX_DEPTH} levels deep")
        if not depth:
            return at
    raise ValueError(f"the value at byte {begin} is not closed")


def _string_end(raw: bytes, begin: int) -> int:
    if not raw.startswith(b'"', begin):
        raise ValueError(f"expected a quoted name at byte {begin}")
    at = begin + 1
    while (piece := STRING_PIECE.match(raw, at)) and piece.end() > at:
        at = piece.end()
    if not raw.startswith(b'"', at):
        raise ValueError(f"the string at byte {begin} is not closed")
    return at + 1

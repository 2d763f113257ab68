"""The members of a posted JSON object as text, to be parsed one by one.

A parser holds the GIL from the first byte to the last: 30 ms for a group of 16×8,192 tokens, 120 ms for four times as
many, and no other request is answered meanwhile. Split into fields and sequences, each piece takes less than 1 ms. If
the pieces are JSON, so is the whole; text that cannot be split raises ValueError.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from hermes_rl.core import fast_json
from hermes_rl.core.json_scanner import ByteRange, JsonMember, elements, members, skip_space

MAX_ELEMENTS = 65_535

Text: TypeAlias = "memoryview[int]"


@dataclass(frozen=True, slots=True)
class Value:
    """A value as text. `elements` is set for an array of arrays or objects."""

    text: Text
    elements: tuple[Text, ...] | None = None


def split_object(raw: bytes) -> dict[str, Value]:
    """The members of a JSON object."""
    found = list(members(raw))
    _check_end(raw, found[-1].value if found else None)
    return _values(raw, found)


def split_objects(raw: bytes) -> Iterator[dict[str, Value]]:
    """The members of each object in a JSON array."""
    found = list(elements(raw))
    _check_end(raw, found[-1] if found else None)
    for element in found:
        yield _values(raw, members(raw, element.begin))


def _check_end(raw: bytes, last: ByteRange | None) -> None:
    """Nothing but white space follows the closing bracket, which follows the `last` element."""
    closing = skip_space(raw, last.end if last else skip_space(raw, 0) + 1)
    if skip_space(raw, closing + 1) != len(raw):
        raise ValueError(f"extra data after the end at byte {closing + 1}")


def _values(raw: bytes, found: Iterable[JsonMember]) -> dict[str, Value]:
    return {str(fast_json.loads(b'"' + member.key + b'"')): _value(raw, member.value) for member in found}


def _value(raw: bytes, span: ByteRange) -> Value:
    view = memoryview(raw)
    text = view[span.begin : span.end]
    if raw[span.begin : span.begin + 1] != b"[" or not raw.startswith((b"[", b"{"), skip_space(raw, span.begin + 1)):
        return Value(text)
    parts: list[Text] = []
    for part in elements(raw, span.begin):
        if len(parts) == MAX_ELEMENTS:
            raise ValueError(f"an array has more than {MAX_ELEMENTS} elements")
        parts.append(view[part.begin : part.end])
    return Value(text, tuple(parts))

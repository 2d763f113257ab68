"""Groups of a JSONL file: one line after the other for the index, and one part of a line for a page.

Always true: a line is only taken once its line feed is there; one longer than the limit is passed over in pieces; at
most one line is in memory, and of a large one only the parts that are asked for become values.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hermes_rl.viewer import lenient, scanning
from hermes_rl.viewer.described import (
    MOST_ROLLOUTS,
    GroupEntry,
    RolloutEntry,
    describe_group,
    describe_rollout,
)

# A group of 16 rollouts with 32,000 exact tokens each takes half of it.
LINE_LIMIT = 64 * 2**20
# Smaller ones are read whole, ten times as fast as they are scanned; their numbers would take ten times their bytes.
LARGE = 2 * 2**20
PIECE = 2**20
# Derived from the rollouts, and often most of the line.
DERIVED = frozenset(
    {b"rollouts", b"tokens", b"masks", b"messages", b"inference_logprobs", b"advantages", b"ref_logprobs", b"scores"}
)
SEQUENCES = frozenset({b"sequences"})
VERSION = re.compile(rb"-?\d{1,18}\Z")


class Line(NamedTuple):
    """`raw` is None for one that is too long to read."""

    number: int
    offset: int
    length: int
    raw: bytes | None


@dataclass(frozen=True, slots=True)
class Broken:
    """A line that holds no group, and why."""

    number: int
    offset: int
    length: int
    why: str


def read_lines(path: Path, offset: int = 0, number: int = 0, limit: int = LINE_LIMIT) -> Iterator[Line]:
    """The whole lines from an offset on, `number` of them being before it; ends before a torn one."""
    with path.open("rb", buffering=PIECE) as file:
        file.seek(offset)
        while raw := file.readline(limit):
            length, whole = len(raw), raw.endswith(b"\n")
            if not whole and length == limit:
                while not whole and (piece := file.readline(PIECE)):
                    length += len(piece)
                    whole = piece.endswith(b"\n")
                raw = b""
            if not whole:
                return
            number += 1
            if not raw or not raw.isspace():
                yield Line(number, offset, length, raw or None)
            offset += length


def entry_of(line: Line) -> GroupEntry | Broken:
    """What the line says of a group, or of a single rollout as `samples.jsonl` has it."""
    at = (line.number, line.offset, line.length)
    if line.raw is None:
        return Broken(*at, f"the line has {line.length:,} bytes; {LINE_LIMIT:,} is the most that is read")
    try:
        return _large_entry(line.raw, at) if line.length > LARGE else _entry(line.raw, at)
    except (ValueError, RecursionError) as error:
        return Broken(*at, f"no JSON object: {error}")


def _entry(raw: bytes, at: tuple[int, int, int]) -> GroupEntry | Broken:
    record = lenient.loads(raw)
    if not isinstance(record, dict):
        raise ValueError("another value")  # noqa: TRY004 - as for any text that is none
    if "rollouts" not in record:
        return _sample(record, at)
    rollouts = [lenient.mapping(one) for one in lenient.sequence(record["rollouts"])[:MOST_ROLLOUTS]]
    entries = tuple(describe_rollout(said, place, versions_of(said)) for place, said in enumerate(rollouts))
    return describe_group(record, entries, rollouts[0] if rollouts else {}, at)


def _large_entry(raw: bytes, at: tuple[int, int, int]) -> GroupEntry | Broken:
    kept, left = scanning.without(raw, 0, DERIVED)
    if b"rollouts" not in left:
        end = len(raw.rstrip())
        said, versions = _scanned(raw, scanning.Span(0, end))
        return _sample(said, at, versions, (at[1], end))
    about = lenient.mapping(lenient.loads(kept))
    entries: list[RolloutEntry] = []
    first: dict[str, Any] = {}
    for position, span in enumerate(scanning.elements(raw, left[b"rollouts"].begin)):
        if position == MOST_ROLLOUTS:
            break
        said, versions = _scanned(raw, span)
        first = first or said
        entries.append(
            describe_rollout(said, position, versions, (at[1] + span.begin, span.end - span.begin)),
        )
    return describe_group(about, tuple(entries), first, at)


def _sample(
    said: Mapping[str, Any],
    at: tuple[int, int, int],
    versions: tuple[int | None, int | None] | None = None,
    span: tuple[int, int] | None = None,
) -> GroupEntry | Broken:
    if not said.keys() & {"messages", "prompt", "response", "reward", "score"}:
        return Broken(*at, "an object that is neither a group nor a rollout")
    entry = describe_rollout(said, 0, versions or versions_of(said), span)
    return describe_group({}, (entry,), said, at)


def versions_of(said: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The lowest and the highest policy version that sampled for the rollout."""
    sequences = (lenient.mapping(one) for one in lenient.sequence(said.get("sequences")))
    found = {version for one in sequences for version in lenient.sequence(one.get("versions"))}
    known = [number for one in found if (number := lenient.whole(one)) is not None]
    return min(known, default=None), max(known, default=None)


def _scanned(raw: bytes, span: scanning.Span) -> tuple[dict[str, Any], tuple[int | None, int | None]]:
    kept, left = scanning.without(raw, span.begin, SEQUENCES)
    said = lenient.loads(kept)
    versions = _scanned_versions(raw, left[b"sequences"].begin) if b"sequences" in left else (None, None)
    return dict(said), versions


def _scanned_versions(raw: bytes, begin: int) -> tuple[int | None, int | None]:
    found: set[bytes] = set()
    for sequence in scanning.elements(raw, begin):
        for member in scanning.members(raw, sequence.begin):
            if member.key == b"versions":
                found.update(member.value.of(raw)[1:-1].split(b","))
    numbers = [int(word) for one in found if VERSION.match(word := one.strip())]
    return min(numbers, default=None), max(numbers, default=None)


def read_part(path: Path, offset: int, length: int) -> bytes:
    """Some bytes of the file; ValueError when it has become shorter."""
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        raw = file.read(length)
        while len(raw) < length and (more := file.read(length - len(raw))):
            raw += more
    if len(raw) < length:
        raise ValueError(f"{path.name} has become shorter than it was")
    return raw

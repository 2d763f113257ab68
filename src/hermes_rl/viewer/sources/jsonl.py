"""Groups of a JSONL file: line by line for the index, and parts of a line for a page.

Always true: a line is read only once its newline is there; one above the limit is skipped in chunks; at most one line
is in memory, and of a large one only the needed parts are parsed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hermes_rl.core import json_scanner
from hermes_rl.viewer import lenient_json
from hermes_rl.viewer.summaries import (
    MAX_ROLLOUTS,
    GroupEntry,
    RolloutEntry,
    describe_group,
    describe_rollout,
)

# Twice the size of a group of 16 rollouts with 32,000 exact tokens each.
LINE_LIMIT = 64 * 2**20
# Smaller lines are parsed whole, ten times as fast as scanning; parsed numbers take ten times their bytes in memory.
LARGE_LINE = 2 * 2**20
CHUNK_BYTES = 2**20
# Derived from the rollouts, and often most of the line.
DERIVED = frozenset(
    {b"rollouts", b"tokens", b"masks", b"messages", b"inference_logprobs", b"advantages", b"ref_logprobs", b"scores"}
)
SEQUENCES = frozenset({b"sequences"})
VERSION = re.compile(rb"-?\d{1,18}\Z")


class Line(NamedTuple):
    """`raw` is None for a line that is too long to read."""

    number: int
    offset: int
    length: int
    raw: bytes | None


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that is not a group, and why."""

    number: int
    offset: int
    length: int
    why: str


def read_lines(path: Path, offset: int = 0, number: int = 0, limit: int = LINE_LIMIT) -> Iterator[Line]:
    """The complete lines from an offset on, `number` being the count of lines before it."""
    with path.open("rb", buffering=CHUNK_BYTES) as file:
        file.seek(offset)
        while raw := file.readline(limit):
            length, complete = len(raw), raw.endswith(b"\n")
            if not complete and length == limit:
                while not complete and (chunk := file.readline(CHUNK_BYTES)):
                    length += len(chunk)
                    complete = chunk.endswith(b"\n")
                raw = b""
            if not complete:
                return
            number += 1
            if not raw or not raw.isspace():
                yield Line(number, offset, length, raw or None)
            offset += length


def index_entry(line: Line) -> GroupEntry | BrokenLine:
    """The entry of a group, or of a single rollout as in `samples.jsonl`."""
    at = (line.number, line.offset, line.length)
    if line.raw is None:
        return BrokenLine(*at, f"the line is too long: {line.length:,} bytes, limit {LINE_LIMIT:,}")
    try:
        return _large_entry(line.raw, at) if line.length > LARGE_LINE else _entry(line.raw, at)
    except (ValueError, RecursionError) as error:
        return BrokenLine(*at, f"not a JSON object: {error}")


def _entry(raw: bytes, at: tuple[int, int, int]) -> GroupEntry | BrokenLine:
    record = lenient_json.loads(raw)
    if not isinstance(record, dict):
        raise ValueError("it is a list, a string or a number")  # noqa: TRY004 - handled like any invalid JSON
    if "rollouts" not in record:
        return _sample_entry(record, at)
    rollouts = [lenient_json.as_mapping(value) for value in lenient_json.as_list(record["rollouts"])[:MAX_ROLLOUTS]]
    entries = tuple(describe_rollout(rollout, index, version_range(rollout)) for index, rollout in enumerate(rollouts))
    return describe_group(record, entries, rollouts[0] if rollouts else {}, at)


def _large_entry(raw: bytes, at: tuple[int, int, int]) -> GroupEntry | BrokenLine:
    kept, left = json_scanner.split_members(raw, 0, DERIVED)
    if b"rollouts" not in left:
        end = len(raw.rstrip())
        record, versions = _scan_rollout(raw, json_scanner.ByteRange(0, end))
        return _sample_entry(record, at, versions, (at[1], end))
    about = lenient_json.as_mapping(lenient_json.loads(kept))
    entries: list[RolloutEntry] = []
    first: dict[str, Any] = {}
    for position, span in enumerate(json_scanner.elements(raw, left[b"rollouts"].begin)):
        if position == MAX_ROLLOUTS:
            break
        record, versions = _scan_rollout(raw, span)
        first = first or record
        entries.append(
            describe_rollout(record, position, versions, (at[1] + span.begin, span.end - span.begin)),
        )
    return describe_group(about, tuple(entries), first, at)


def _sample_entry(
    record: Mapping[str, Any],
    at: tuple[int, int, int],
    versions: tuple[int | None, int | None] | None = None,
    span: tuple[int, int] | None = None,
) -> GroupEntry | BrokenLine:
    if not record.keys() & {"messages", "prompt", "response", "reward", "score"}:
        return BrokenLine(*at, "neither a group nor a rollout")
    entry = describe_rollout(record, 0, versions or version_range(record), span)
    return describe_group({}, (entry,), record, at)


def version_range(record: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The lowest and highest policy version that sampled the rollout."""
    sequences = (lenient_json.as_mapping(value) for value in lenient_json.as_list(record.get("sequences")))
    found = (lenient_json.as_int(version) for own in sequences for version in lenient_json.as_list(own.get("versions")))
    known = {number for number in found if number is not None}
    return min(known, default=None), max(known, default=None)


def _scan_rollout(raw: bytes, span: json_scanner.ByteRange) -> tuple[dict[str, Any], tuple[int | None, int | None]]:
    kept, left = json_scanner.split_members(raw, span.begin, SEQUENCES)
    record = lenient_json.loads(kept)
    versions = _scan_versions(raw, left[b"sequences"].begin) if b"sequences" in left else (None, None)
    return dict(record), versions


def _scan_versions(raw: bytes, begin: int) -> tuple[int | None, int | None]:
    found: set[bytes] = set()
    for sequence in json_scanner.elements(raw, begin):
        for member in json_scanner.members(raw, sequence.begin):
            if member.key == b"versions":
                found.update(member.value.slice(raw)[1:-1].split(b","))
    numbers = [int(word) for one in found if VERSION.match(word := one.strip())]
    return min(numbers, default=None), max(numbers, default=None)


def read_part(path: Path, offset: int, length: int) -> bytes:
    """A range of bytes of the file; ValueError when it has become shorter."""
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        raw = file.read(length)
        while len(raw) < length and (more := file.read(length - len(raw))):
            raw += more
    if len(raw) < length:
        raise ValueError(f"{path.name} is shorter than when it was indexed")
    return raw

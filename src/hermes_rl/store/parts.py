"""Named parts in one run of bytes, described in docs/formats.md: a header that lists the parts, then the parts.

Always true: nothing is read from a part before its place, its length and its checksum agreed with the header; a part of
a name or type that this version does not know is checked and left alone; no byte belongs to nothing; and reading takes
no more memory than the bytes themselves and `limit` account for, whatever they claim.
"""

import hashlib
import json
import struct
import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from hermes_rl import jsontext
from hermes_rl.errors import HermesRLError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# As in PNG: a byte beyond ASCII and a line ending, so that a transfer as text is seen at once.
MAGIC = b"\x89HRLG\r\n\x1a"
VERSION = 1
# Magic, version, length of the header; then the CRC-32 of these and the header.
PRELUDE = struct.Struct("<8sII")
CHECKSUM = struct.Struct("<I")
HEADER_AT = PRELUDE.size + CHECKSUM.size
LONGEST_HEADER = 65_536
LIMIT = 256 * 2**20
LEVEL = 3
# The window that RFC 8878 asks every reader to support: 8 MiB.
WINDOW: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}

JSON = "json+zstd"
BITS = "bits"
LETTERS = {"u32": "I", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}

DIGITS = bytes.maketrans(b"\0\1", b"01")
FLAGS = bytes.maketrans(b"01", b"\0\1")

Bytes: TypeAlias = bytes | bytearray | memoryview


class BadGroupError(HermesRLError, ValueError):
    """These bytes are no whole group that this version reads, or the group cannot be written. The text says why."""


class Content(NamedTuple):
    """A part to write. `size` counts elements, for JSON the bytes of its text; `canonical` is what the id covers."""

    name: str
    type: str
    size: int
    data: bytes
    canonical: bytes


class Part(NamedTuple):
    """What the header says of a part; `offset` is from where the first part can begin."""

    name: str
    type: str
    size: int
    offset: int
    length: int
    crc32: int


class Parts:
    """Parts whose header was checked. A part is compared with its checksum, and unpacked, when it is asked for.

    `id` is the content id as the writer says it; `computed_id` says what it must be.
    """

    def __init__(self, content_id: str, parts: Iterable[Part], body: "memoryview[int]") -> None:
        self.id = content_id
        self._parts = {part.name: part for part in parts}
        self._body = body
        self._unpacked: dict[str, Any] = {}
        self._checked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def size(self, name: str) -> int:
        return self._parts[name].size

    def integers(self, name: str, *types: str) -> "memoryview[int]":
        part = self._part(name, *types)
        column: memoryview[int] = self._bytes(part).cast(LETTERS[part.type])  # type: ignore[call-overload]
        return column

    def floats(self, name: str, kind: str) -> "memoryview[float]":
        column: memoryview[float] = self._bytes(self._part(name, kind)).cast(LETTERS[kind])  # type: ignore[call-overload]
        return column

    def bits(self, name: str) -> "memoryview[int]":
        part = self._part(name, BITS)
        raw = self._bytes(part)
        if raw and raw[-1] & ((1 << -part.size % 8) - 1):
            raise BadGroupError(f"the part {name!r} has bits after its last")
        return raw

    def json(self, name: str) -> Any:
        part = self._part(name, JSON)
        if name not in self._unpacked:
            self._unpacked[name] = _unpacked(part, self._bytes(part))
        return self._unpacked[name]

    def check_all(self) -> None:
        """Compare every part with its checksum, those of unknown names too; nothing is unpacked for it."""
        for part in self._parts.values():
            self._bytes(part)

    def computed_id(self) -> str:
        """The content id by the parts themselves, those of unknown names too; this reads them all."""
        return content_id(
            (part.name, part.type, part.size, _canonical(self.json(name)) if part.type == JSON else self._bytes(part))
            for name, part in self._parts.items()
        )

    def _part(self, name: str, *types: str) -> Part:
        part = self._parts.get(name)
        if part is None:
            raise BadGroupError(f"the part {name!r} is missing")
        if part.type not in types:
            raise BadGroupError(f"the part {name!r} is of type {part.type!r}; this version reads {' or '.join(types)}")
        return part

    def _bytes(self, part: Part) -> "memoryview[int]":
        raw = self._body[part.offset : part.offset + part.length]
        if part.name not in self._checked:
            if zlib.crc32(raw) != part.crc32:
                raise BadGroupError(f"the part {part.name!r} has another checksum: its bytes were changed or torn")
            self._checked.add(part.name)
        return raw


def column_part(name: str, kind: str, values: Sequence[float]) -> Content:
    try:
        data = struct.pack(f"<{len(values)}{LETTERS[kind]}", *values)
    except (OverflowError, struct.error) as error:
        raise BadGroupError(f"the column {name!r} of {kind} cannot hold all of its values: {error}") from error
    return Content(name, kind, len(values), data, data)


def bits_part(name: str, flags: bytes) -> Content:
    """Bytes of 0 and 1 as bits, the first in the highest place of the first byte."""
    digits = flags.translate(DIGITS) + b"0" * (-len(flags) % 8)
    data = int(digits or b"0", 2).to_bytes(len(digits) // 8, "big")
    return Content(name, BITS, len(flags), data, data)


def json_part(name: str, value: Any) -> Content:
    text = jsontext.dumps(value)
    return Content(name, JSON, len(text), zstd.compress(text, LEVEL), _canonical(jsontext.loads(text)))


def flags_of(bits: "memoryview[int]", count: int) -> bytes:
    """Bits as bytes of 0 and 1."""
    digits = format(int.from_bytes(bits, "big"), f"0{len(bits) * 8}b").encode()
    return digits.translate(FLAGS)[:count]


def seal(contents: Iterable[Content]) -> bytes:
    """The parts with their header before them."""
    contents = list(contents)
    parts: list[Part] = []
    body = bytearray()
    for content in contents:
        body += bytes(-len(body) % 8)
        checksum = zlib.crc32(content.data)
        parts.append(Part(content.name, content.type, content.size, len(body), len(content.data), checksum))
        body += content.data
    said = content_id((content.name, content.type, content.size, content.canonical) for content in contents)
    return sealed(jsontext.dumps({"id": said, "parts": [part._asdict() for part in parts]}), body)


def sealed(header: bytes, body: Bytes) -> bytes:
    prelude = PRELUDE.pack(MAGIC, VERSION, len(header))
    checksum = CHECKSUM.pack(zlib.crc32(header, zlib.crc32(prelude)))
    return b"".join((prelude, checksum, header, bytes(-(HEADER_AT + len(header)) % 8), body))


def unseal(data: Bytes, *, limit: int = LIMIT) -> Parts:
    """The parts with only their header checked, and nothing unpacked. `limit` is of bytes of JSON, once unpacked."""
    raw = memoryview(data).cast("B")
    header = _header(raw)
    try:
        said = jsontext.loads(bytes(header))
        identity, parts = said["id"], list(map(_part, said["parts"]))
    except BadGroupError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise BadGroupError(f"the header cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(identity, str):
        raise BadGroupError(f"the content id is no text: {identity!r}")
    begin = _check_places(parts, raw, HEADER_AT + len(header))
    unpacked = sum(part.size for part in parts if part.type == JSON)
    if unpacked > limit:
        raise BadGroupError(f"{unpacked} bytes of JSON are in it, by its header; the limit is {limit}")
    return Parts(identity, parts, raw[begin:])


def content_id(parts: Iterable[tuple[str, str, int, Bytes]]) -> str:
    """A hash over the parts in the order of their names: JSON with its keys sorted, all else as it is stored."""
    digest = hashlib.sha256()
    for name, kind, size, canonical in sorted(parts, key=lambda part: part[0]):
        digest.update(json.dumps([name, kind, len(canonical) if kind == JSON else size]).encode())
        digest.update(canonical)
    return digest.hexdigest()


def _header(raw: "memoryview[int]") -> "memoryview[int]":
    if len(raw) < HEADER_AT:
        raise BadGroupError(f"{len(raw)} bytes are too few to be a group")
    magic, version, length = PRELUDE.unpack_from(raw)
    if magic != MAGIC:
        raise BadGroupError(f"a group begins with {MAGIC!r}, not with {magic!r}")
    if version != VERSION:
        raise BadGroupError(f"the group is in version {version} of the format; this version reads {VERSION}")
    if length > LONGEST_HEADER or HEADER_AT + length > len(raw):
        raise BadGroupError(f"a header of {length} bytes in {len(raw)}; {LONGEST_HEADER} is the most")
    header = raw[HEADER_AT : HEADER_AT + length]
    if CHECKSUM.unpack_from(raw, PRELUDE.size) != (zlib.crc32(header, zlib.crc32(raw[: PRELUDE.size])),):
        raise BadGroupError("the header has another checksum: its bytes were changed or torn")
    return header


def _check_places(parts: list[Part], raw: "memoryview[int]", end: int) -> int:
    """Where the body begins. Each part stands where the one before it ends, filled up to 8 bytes with zeros."""
    body = end + -end % 8
    names = set()
    for part in parts:
        begin = end + -end % 8
        if part.name in names:
            raise BadGroupError(f"the part {part.name!r} is there twice")
        if body + part.offset != begin or any(raw[end:begin]):
            raise BadGroupError(f"the part {part.name!r} does not begin where the one before it ends")
        names.add(part.name)
        end = begin + part.length
        if end > len(raw):
            raise BadGroupError(f"the part {part.name!r} goes on to byte {end}, and there are {len(raw)}: it is torn")
    if end != len(raw):
        raise BadGroupError(f"the last part ends at byte {end}, and there are {len(raw)}")
    return body


def _part(said: Any) -> Part:
    name, kind, *numbers = (said[field] for field in Part._fields)
    if not isinstance(name, str) or not isinstance(kind, str):
        raise BadGroupError(f"a part's name and type are texts, not {name!r} and {kind!r}")
    if any(type(number) is not int or number < 0 for number in numbers):
        raise BadGroupError(f"the part {name!r} has numbers that are none: {numbers!r}")
    part = Part(name, kind, *numbers)
    due = part.length
    if kind == BITS:
        due = (part.size + 7) // 8
    elif kind in LETTERS:
        due = part.size * struct.calcsize(LETTERS[kind])
    if part.length != due:
        raise BadGroupError(f"the part {name!r} has {part.length} bytes for {part.size} of {kind}")
    return part


def _unpacked(part: Part, packed: "memoryview[int]") -> Any:
    decompressor = zstd.ZstdDecompressor(options=WINDOW)
    try:
        # One byte more than it says: enough to see that there is more, without making it.
        text = decompressor.decompress(packed, max_length=part.size + 1)
    except zstd.ZstdError as error:
        raise BadGroupError(f"the part {part.name!r} cannot be unpacked: {error}") from error
    if len(text) != part.size or not decompressor.eof or decompressor.unused_data:
        raise BadGroupError(f"the part {part.name!r} does not unpack to the {part.size} bytes it says")
    try:
        return jsontext.loads(text)
    except ValueError as error:
        raise BadGroupError(f"the part {part.name!r} is not JSON: {error}") from error


def _canonical(value: Any) -> bytes:
    # The standard library's: its numbers are written the same by every version of Python, and the id must outlive them.
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    except RecursionError:
        raise BadGroupError("JSON in it is nested too deeply") from None

"""A binary container of named parts, described in docs/formats.md: a header that lists the parts, then the parts.

Always true: a part is read only after its offset, length and checksum match the header; parts of unknown name or type
are checked and ignored; every byte belongs to a part; memory use is bounded by the input size, `limit` and the limits
of expansion, which hold for what is written too.
"""

import hashlib
import json
import struct
import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from hermes_rl.core import fast_json
from hermes_rl.core.errors import HermesRLError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# As in PNG: a non-ASCII byte and a line ending, so that a transfer in text mode is detected immediately.
MAGIC = b"\x89HRLG\r\n\x1a"
VERSION = 1
# Magic, version, length of the header; then the CRC-32 of these and the header.
PRELUDE = struct.Struct("<8sII")
CHECKSUM = struct.Struct("<I")
HEADER_OFFSET = PRELUDE.size + CHECKSUM.size
MAX_HEADER_BYTES = 65_536
MAX_JSON_BYTES = 256 * 2**20
# JSON may decompress to this size, or to so many times its compressed size. A group of 64 replies that repeat one word
# until their context is full has 10 MB of JSON that compress a thousandfold, and must stay readable.
FREE_JSON_BYTES = 32 * 2**20
MAX_JSON_RATIO = 1000
# Of the characters `[`, `{`, `,` and `:` outside strings: each is a Python object of up to 90 bytes.
MAX_JSON_MARKS = 4_000_000
FEW_MARKS = 50_000
CHUNK_BYTES = 2**20
ZSTD_LEVEL = 3
# The window that RFC 8878 requires every reader to support: 8 MiB.
WINDOW: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}

JSON = "json+zstd"
BITS = "bits"
STRUCT_CODES = {"u32": "I", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}

MARKS = (b"[", b"{", b",", b":")
DIGITS = bytes.maketrans(b"\0\1", b"01")
FLAGS = bytes.maketrans(b"01", b"\0\1")

Bytes: TypeAlias = bytes | bytearray | memoryview


class BadGroupError(HermesRLError, ValueError):
    """The bytes are not a complete group that this version can read, or the group cannot be written."""


class PartContent(NamedTuple):
    """A part to write. `size` counts elements, or bytes of text for JSON; `canonical` is what the content id hashes."""

    name: str
    type: str
    size: int
    data: bytes
    canonical: bytes


class PartEntry(NamedTuple):
    """A part's entry in the header; `offset` is relative to the start of the body."""

    name: str
    type: str
    size: int
    offset: int
    length: int
    crc32: int


class Parts:
    """Parts with a checked header. Each part is verified and decompressed on first access.

    `id` is the content id in the header; `computed_id` is what it must be.
    """

    def __init__(self, content_id: str, parts: Iterable[PartEntry], body: "memoryview[int]") -> None:
        self.id = content_id
        self._parts = {part.name: part for part in parts}
        self._body = body
        self._json: dict[str, Any] = {}
        self._json_marks = 0
        self._checked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def size(self, name: str) -> int:
        return self._parts[name].size

    def integers(self, name: str, *types: str) -> "memoryview[int]":
        part = self._part(name, *types)
        column: memoryview[int] = self._bytes(part).cast(STRUCT_CODES[part.type])  # type: ignore[call-overload]
        return column

    def floats(self, name: str, kind: str) -> "memoryview[float]":
        column: memoryview[float] = self._bytes(self._part(name, kind)).cast(STRUCT_CODES[kind])  # type: ignore[call-overload]
        return column

    def bits(self, name: str) -> "memoryview[int]":
        part = self._part(name, BITS)
        raw = self._bytes(part)
        if raw and raw[-1] & ((1 << -part.size % 8) - 1):
            raise BadGroupError(f"the part {name!r} has nonzero padding bits")
        return raw

    def json(self, name: str) -> Any:
        part = self._part(name, JSON)
        if name not in self._json:
            text = _decompress(part, self._bytes(part))
            self._json_marks += _count_marks(text, MAX_JSON_MARKS - self._json_marks, name)
            self._json[name] = _parse_json(name, text)
        return self._json[name]

    def check_all(self) -> None:
        """Verify the checksum of every part, unknown ones too, without decompressing."""
        for part in self._parts.values():
            self._bytes(part)

    def computed_id(self) -> str:
        """The content id computed from all parts, unknown ones too; this reads everything."""
        return content_id(
            (part.name, part.type, part.size, _canonical(self.json(name)) if part.type == JSON else self._bytes(part))
            for name, part in self._parts.items()
        )

    def _part(self, name: str, *types: str) -> PartEntry:
        part = self._parts.get(name)
        if part is None:
            raise BadGroupError(f"the part {name!r} is missing")
        if part.type not in types:
            raise BadGroupError(f"the part {name!r} is of type {part.type!r}; this version reads {' or '.join(types)}")
        return part

    def _bytes(self, part: PartEntry) -> "memoryview[int]":
        raw = self._body[part.offset : part.offset + part.length]
        if part.name not in self._checked:
            if zlib.crc32(raw) != part.crc32:
                raise BadGroupError(f"the part {part.name!r} has a wrong checksum: its bytes are corrupt or truncated")
            self._checked.add(part.name)
        return raw


def column_part(name: str, kind: str, values: Sequence[float]) -> PartContent:
    try:
        data = struct.pack(f"<{len(values)}{STRUCT_CODES[kind]}", *values)
    except (OverflowError, struct.error) as error:
        raise BadGroupError(f"a value of the column {name!r} does not fit {kind}: {error}") from error
    return PartContent(name, kind, len(values), data, data)


def bits_part(name: str, flags: bytes) -> PartContent:
    """Bytes of 0 and 1 as bits, most significant first."""
    digits = flags.translate(DIGITS) + b"0" * (-len(flags) % 8)
    data = int(digits or b"0", 2).to_bytes(len(digits) // 8, "big")
    return PartContent(name, BITS, len(flags), data, data)


def json_part(name: str, value: Any) -> PartContent:
    text = fast_json.dumps(value)
    _count_marks(text, MAX_JSON_MARKS, name)
    return PartContent(name, JSON, len(text), zstd.compress(text, ZSTD_LEVEL), _canonical(fast_json.loads(text)))


def unpack_bits(bits: "memoryview[int]", count: int) -> bytes:
    """Bits as bytes of 0 and 1."""
    digits = format(int.from_bytes(bits, "big"), f"0{len(bits) * 8}b").encode()
    return digits.translate(FLAGS)[:count]


def pack_parts(contents: Iterable[PartContent]) -> bytes:
    """The header followed by the parts."""
    contents = list(contents)
    parts: list[PartEntry] = []
    body = bytearray()
    for content in contents:
        body += bytes(-len(body) % 8)
        checksum = zlib.crc32(content.data)
        parts.append(PartEntry(content.name, content.type, content.size, len(body), len(content.data), checksum))
        body += content.data
    identity = content_id((content.name, content.type, content.size, content.canonical) for content in contents)
    return frame(fast_json.dumps({"id": identity, "parts": [part._asdict() for part in parts]}), body)


def frame(header: bytes, body: Bytes) -> bytes:
    prelude = PRELUDE.pack(MAGIC, VERSION, len(header))
    checksum = CHECKSUM.pack(zlib.crc32(header, zlib.crc32(prelude)))
    return b"".join((prelude, checksum, header, bytes(-(HEADER_OFFSET + len(header)) % 8), body))


def unpack_parts(data: Bytes, *, limit: int = MAX_JSON_BYTES) -> Parts:
    """The parts, with only the header checked. `limit` is the maximum of decompressed JSON in bytes."""
    raw = memoryview(data).cast("B")
    header = _read_header(raw)
    try:
        fields = fast_json.loads(bytes(header))
        identity, parts = fields["id"], list(map(_parse_entry, fields["parts"]))
    except BadGroupError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise BadGroupError(f"the header cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(identity, str):
        raise BadGroupError(f"the content id is not a string: {identity!r}")
    begin = _check_layout(parts, raw, HEADER_OFFSET + len(header))
    json_bytes = sum(part.size for part in parts if part.type == JSON)
    if json_bytes > limit:
        raise BadGroupError(f"its header lists {json_bytes} bytes of JSON; the limit is {limit}")
    compressed = sum(part.length for part in parts if part.type == JSON)
    if json_bytes > (expanded := max(FREE_JSON_BYTES, MAX_JSON_RATIO * compressed)):
        raise BadGroupError(
            f"its {compressed} bytes of compressed JSON expand to {json_bytes}; the limit is {expanded} "
            f"({MAX_JSON_RATIO} times their size, or {FREE_JSON_BYTES} bytes)"
        )
    return Parts(identity, parts, raw[begin:])


def content_id(parts: Iterable[tuple[str, str, int, Bytes]]) -> str:
    """A hash over the parts sorted by name: JSON with sorted keys, everything else as stored."""
    digest = hashlib.sha256()
    for name, kind, size, canonical in sorted(parts, key=lambda part: part[0]):
        digest.update(json.dumps([name, kind, len(canonical) if kind == JSON else size]).encode())
        digest.update(canonical)
    return digest.hexdigest()


def _read_header(raw: "memoryview[int]") -> "memoryview[int]":
    if len(raw) < HEADER_OFFSET:
        raise BadGroupError(f"{len(raw)} bytes are too few for a group")
    magic, version, length = PRELUDE.unpack_from(raw)
    if magic != MAGIC:
        raise BadGroupError(f"a group begins with {MAGIC!r}, not with {magic!r}")
    if version != VERSION:
        raise BadGroupError(f"the group has format version {version}; this hermes-rl reads {VERSION}")
    if length > MAX_HEADER_BYTES or HEADER_OFFSET + length > len(raw):
        raise BadGroupError(f"a header of {length} bytes in {len(raw)}; the limit is {MAX_HEADER_BYTES}")
    header = raw[HEADER_OFFSET : HEADER_OFFSET + length]
    if CHECKSUM.unpack_from(raw, PRELUDE.size) != (zlib.crc32(header, zlib.crc32(raw[: PRELUDE.size])),):
        raise BadGroupError("the header has a wrong checksum: its bytes are corrupt or truncated")
    return header


def _check_layout(parts: list[PartEntry], raw: "memoryview[int]", end: int) -> int:
    """The offset of the body. Each part starts where the previous one ends, zero-padded to 8 bytes."""
    body = end + -end % 8
    names = set()
    for part in parts:
        begin = end + -end % 8
        if part.name in names:
            raise BadGroupError(f"the part {part.name!r} appears twice")
        if body + part.offset != begin or any(raw[end:begin]):
            raise BadGroupError(f"the part {part.name!r} does not start where the previous part ends")
        names.add(part.name)
        end = begin + part.length
        if end > len(raw):
            raise BadGroupError(f"the part {part.name!r} ends at byte {end} of {len(raw)}: the group is truncated")
    if end != len(raw):
        raise BadGroupError(f"the last part ends at byte {end} of {len(raw)}: there are extra bytes")
    return body


def _parse_entry(entry: Any) -> PartEntry:
    name, kind, *numbers = (entry[field] for field in PartEntry._fields)
    if not isinstance(name, str) or not isinstance(kind, str):
        raise BadGroupError(f"a part's name and type must be strings, not {name!r} and {kind!r}")
    if any(type(number) is not int or number < 0 for number in numbers):
        raise BadGroupError(f"the part {name!r} has invalid numbers: {numbers!r}")
    part = PartEntry(name, kind, *numbers)
    expected = part.length
    if kind == BITS:
        expected = (part.size + 7) // 8
    elif kind in STRUCT_CODES:
        expected = part.size * struct.calcsize(STRUCT_CODES[kind])
    if part.length != expected:
        raise BadGroupError(f"the part {name!r} has {part.length} bytes for {part.size} of {kind}")
    return part


def _decompress(part: PartEntry, compressed: "memoryview[int]") -> bytes:
    decompressor = zstd.ZstdDecompressor(options=WINDOW)
    try:
        # One byte more than the header says: enough to detect more without producing it.
        text = decompressor.decompress(compressed, max_length=part.size + 1)
    except zstd.ZstdError as error:
        raise BadGroupError(f"the part {part.name!r} cannot be decompressed: {error}") from error
    if len(text) != part.size or not decompressor.eof or decompressor.unused_data:
        raise BadGroupError(f"the part {part.name!r} does not decompress to the {part.size} bytes in its header")
    return text


def _count_marks(text: bytes, limit: int, name: str) -> int:
    """The characters outside strings that begin or separate values; BadGroupError for more than `limit`."""
    count = sum(map(text.count, MARKS))
    if count <= min(limit, FEW_MARKS):
        # Those inside strings are included, which does not matter for so few.
        return count
    count = begin = inside = 0
    while begin < len(text) and count <= limit:
        end = begin + CHUNK_BYTES
        while text[end - 1 : end] == b"\\":
            # An escape is not cut in two.
            end += 1
        pieces = text[begin:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[inside::2])
        count += sum(map(outside.count, MARKS))
        inside ^= len(pieces) - 1 & 1
        begin = end
    if count > limit:
        raise BadGroupError(
            f"the JSON up to the part {name!r} has more than {MAX_JSON_MARKS:,} values and keys, the limit of a group"
        )
    return count


def _parse_json(name: str, text: bytes) -> Any:
    try:
        return fast_json.loads(text)
    except ValueError as error:
        raise BadGroupError(f"the part {name!r} is not JSON: {error}") from error


def _canonical(value: Any) -> bytes:
    # The standard library writes numbers the same in every version of Python, and ids must stay stable.
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    except RecursionError:
        raise BadGroupError("its JSON is nested too deeply") from None

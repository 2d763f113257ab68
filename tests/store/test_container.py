import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.core import fast_json
from hermes_rl.store.container import (
    HEADER_OFFSET,
    JSON,
    MAGIC,
    MAX_HEADER_BYTES,
    PRELUDE,
    BadGroupError,
    PartContent,
    bits_part,
    column_part,
    frame,
    json_part,
    pack_parts,
    unpack_bits,
    unpack_parts,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

NUMBERS = column_part("numbers", "i32", [1, -2, 3])
WORDS = json_part("words", {"a": "b"})
DATA = pack_parts([NUMBERS, bits_part("marks", b"\1\0\1"), WORDS])


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header, and the body after it."""
    end = HEADER_OFFSET + PRELUDE.unpack_from(data)[2]
    return fast_json.loads(data[HEADER_OFFSET:end]), data[end + -end % 8 :]


def with_header(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The same parts after a header that its checksum calls right."""
    header, body = header_of(DATA)
    change(header)
    return frame(fast_json.dumps(header), body)


def packed(text: bytes, size: int, name: str = "words") -> PartContent:
    return PartContent(name, JSON, size, zstd.compress(text), b"")


def test_parts_come_back_by_name() -> None:
    parts = unpack_parts(DATA)
    assert parts.integers("numbers", "i32").tolist() == [1, -2, 3]
    assert unpack_bits(parts.bits("marks"), 3) == b"\1\0\1"
    assert parts.json("words") == {"a": "b"}


@UNHURRIED
@given(st.lists(st.integers(0, 1)).map(bytes))
def test_flags_come_back_from_bits(flags: bytes) -> None:
    assert unpack_bits(memoryview(bits_part("marks", flags).data), len(flags)) == flags


def test_the_first_flag_is_the_highest_bit_of_the_first_byte() -> None:
    assert bits_part("marks", b"\1\0\0\0\0\0\0\0\1").data == b"\x80\x80"


def test_columns_begin_at_whole_words() -> None:
    header, body = header_of(DATA)
    assert (len(DATA) - len(body)) % 8 == 0
    assert [part["offset"] % 8 for part in header["parts"]] == [0, 0, 0]


def test_numbers_are_read_in_place() -> None:
    assert unpack_parts(DATA).integers("numbers", "i32").obj is DATA


def test_the_id_does_not_depend_on_the_order_of_keys_or_parts() -> None:
    one = pack_parts([NUMBERS, json_part("words", {"a": 1, "b": 2})])
    other = pack_parts([json_part("words", {"b": 2, "a": 1}), NUMBERS])
    assert unpack_parts(one).id == unpack_parts(other).id == unpack_parts(other).computed_id()


def test_the_order_of_keys_is_kept() -> None:
    assert list(unpack_parts(pack_parts([json_part("words", {"b": 2, "a": 1})])).json("words")) == ["b", "a"]


def test_the_same_bytes_under_another_type_have_another_id() -> None:
    longer = PartContent("numbers", "u32", 3, NUMBERS.data, NUMBERS.canonical)
    assert unpack_parts(pack_parts([NUMBERS])).id != unpack_parts(pack_parts([longer])).id


def test_a_part_of_an_unknown_name_is_left_alone() -> None:
    parts = unpack_parts(pack_parts([NUMBERS, json_part("of_a_later_version", [1])]))
    assert parts.integers("numbers", "i32").tolist() == [1, -2, 3]
    assert parts.computed_id() == parts.id


def test_a_part_of_an_unknown_type_is_left_alone() -> None:
    parts = unpack_parts(pack_parts([NUMBERS, PartContent("of_a_later_version", "f16", 3, b"abcdef", b"abcdef")]))
    assert parts.integers("numbers", "i32").tolist() == [1, -2, 3]
    assert parts.computed_id() == parts.id


def test_a_header_may_say_more_than_this_version_reads() -> None:
    assert "numbers" in unpack_parts(with_header(lambda header: header.update(later=1)))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "0 bytes are too few"),
        (b"{" * 64, "a group begins with"),
        (MAGIC + struct.pack("<III", 2, 0, 0), "format version 2"),
        (MAGIC + struct.pack("<III", 1, 2**32 - 1, 0), "a header of 4294967295 bytes"),
        (
            MAGIC + struct.pack("<III", 1, MAX_HEADER_BYTES + 1, 0) + bytes(MAX_HEADER_BYTES + 1),
            "a header of 65537 bytes",
        ),
        (MAGIC + struct.pack("<III", 1, 2, 0) + b"{}", "the header has a wrong checksum"),
        (frame(b"nonsense", b""), "the header cannot be read: ValueError"),
        (frame(b"[]", b""), "the header cannot be read: TypeError"),
        (frame(b"{}", b""), "the header cannot be read: KeyError"),
        (frame(b"[" * 60_000, b""), "the header cannot be read: ValueError"),
        (frame(b'{"id":"","parts":[{}]}', b""), "the header cannot be read: KeyError"),
        (frame(b'{"id":1,"parts":[]}', b""), "the content id is not a string"),
        (DATA + b"\0", "the last part ends at byte"),
        (DATA[:-1], "the group is truncated"),
    ],
)
def test_bytes_that_are_no_parts_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(BadGroupError, match=complaint):
        unpack_parts(data)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"name": 1}, "name and type must be strings"),
        ({"type": None}, "name and type must be strings"),
        ({"size": -1}, "invalid numbers"),
        ({"size": True}, "invalid numbers"),
        ({"offset": 1.0}, "invalid numbers"),
        ({"size": 2**70}, "has 12 bytes for"),
        ({"length": 2**70}, "bytes for 3 of i32"),
        ({"size": 2}, "has 12 bytes for 2 of i32"),
        ({"offset": 8}, "does not start where"),
        ({"name": "words"}, "'words' appears twice"),
        ({"type": "i64"}, "has 12 bytes for 3 of i64"),
        ({"type": "bits"}, "has 12 bytes for 3 of bits"),
        ({"type": "unheard", "length": 2**70}, "the group is truncated"),
    ],
)
def test_a_header_that_lies_is_refused(entry: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadGroupError, match=complaint):
        unpack_parts(with_header(lambda header: header["parts"][0].update(entry)))


def test_bytes_between_parts_are_refused() -> None:
    header, body = header_of(DATA)
    assert body[12:16] == bytes(4)
    with pytest.raises(BadGroupError, match="does not start where"):
        unpack_parts(frame(fast_json.dumps(header), body[:12] + b"\1" + body[13:]))


def test_a_changed_part_is_found_when_it_is_read() -> None:
    header, body = header_of(DATA)
    parts = unpack_parts(frame(fast_json.dumps(header), b"\0" + body[1:]))
    assert parts.json("words") == {"a": "b"}
    with pytest.raises(BadGroupError, match="'numbers' has a wrong checksum"):
        parts.integers("numbers", "i32")


def test_a_missing_part_is_named() -> None:
    with pytest.raises(BadGroupError, match="the part 'more' is missing"):
        unpack_parts(DATA).json("more")


def test_a_part_of_another_type_is_named() -> None:
    with pytest.raises(BadGroupError, match="'words' is of type 'json\\+zstd'; this version reads i32 or i64"):
        unpack_parts(DATA).integers("words", "i32", "i64")


def test_bits_after_the_last_are_refused() -> None:
    with pytest.raises(BadGroupError, match="has nonzero padding bits"):
        unpack_parts(pack_parts([PartContent("marks", "bits", 3, b"\xb0", b"")])).bits("marks")


def test_more_json_than_the_limit_is_refused_before_any_is_unpacked() -> None:
    with pytest.raises(BadGroupError, match="its header lists 9 bytes of JSON; the limit is 8"):
        unpack_parts(DATA, limit=8)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (packed(b"[1]", 2), "does not decompress to the 2 bytes"),
        (packed(b"[1]", 4), "does not decompress to the 4 bytes"),
        (packed(b"", 0), "is not JSON"),
        (packed(b"[1", 2), "is not JSON"),
        (packed(b"[NaN]", 5), "is not JSON"),
        (packed(b'"\xff"', 3), "is not JSON"),
        (PartContent("words", JSON, 3, b"[1]", b""), "cannot be decompressed"),
        (PartContent("words", JSON, 3, b"", b""), "does not decompress to the 3 bytes"),
        (PartContent("words", JSON, 3, zstd.compress(b"[1]") + b"\0", b""), "does not decompress to the 3 bytes"),
        (PartContent("words", JSON, 3, zstd.compress(b"[1]")[:-1], b""), "does not decompress to the 3 bytes"),
    ],
)
def test_json_that_does_not_unpack_to_what_it_says_is_refused(content: PartContent, complaint: str) -> None:
    with pytest.raises(BadGroupError, match=complaint):
        unpack_parts(pack_parts([content])).json("words")


@pytest.mark.parametrize("depth", [250, 1000, 100_000])
def test_json_nested_deeply_raises_no_other_error(depth: int) -> None:
    """How deep Python itself goes differs from version to version."""
    deep = b"[" * depth + b"]" * depth
    with suppress(BadGroupError):
        unpack_parts(pack_parts([packed(deep, len(deep))])).computed_id()


def test_a_bomb_takes_no_more_memory_than_it_says() -> None:
    bomb = pack_parts([packed(bytes(200 * 2**20), 1000)])
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(BadGroupError, match="does not decompress to the 1000 bytes"):
            unpack_parts(bomb).json("words")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def memory_of_refusal(data: bytes, complaint: str) -> int:
    """Bytes that Python takes at most until the part `words` is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(BadGroupError, match=complaint):
            unpack_parts(data).json("words")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_few_kilobytes_do_not_become_gigabytes() -> None:
    """Before: 8.7 KB with a long string in its JSON became 256 MiB of text, and 2.1 GB in the viewer."""
    text = b'"' + b"a" * (250 * 2**20) + b'"'
    bomb = pack_parts([packed(text, len(text))])
    assert len(bomb) < 50_000
    assert memory_of_refusal(bomb, f"expand to {len(text)}; the limit is 33554432") < 2**20


@pytest.mark.parametrize("element", [b"[]", b"{}", b"[[[[[]]]]]", b'{"a":1}', b'""'])
def test_json_of_many_small_values_is_refused_before_it_is_parsed(element: bytes) -> None:
    text = b"[" + b",".join([element] * (30 * 2**20 // (len(element) + 1))) + b"]"
    bomb = pack_parts([packed(text, len(text))])
    del text
    assert memory_of_refusal(bomb, "more than 4,000,000 values and keys, the limit of a group") < 100 * 2**20


def test_values_are_counted_over_all_parts() -> None:
    names = [f"part {number}" for number in range(3)]
    text = b"[" + b",".join([b"1"] * 1_500_000) + b"]"
    parts = unpack_parts(pack_parts([packed(text, len(text), name) for name in names]))
    parts.json(names[0])
    parts.json(names[1])
    with pytest.raises(BadGroupError, match="'part 2' has more than 4,000,000 values"):
        parts.json(names[2])


def test_a_text_of_commas_and_quotes_is_one_value() -> None:
    text = "[{:," * 1_500_000 + '\\"' * 100_000
    assert unpack_parts(pack_parts([json_part("words", text)])).json("words") == text


def test_a_model_that_repeats_itself_stays_readable() -> None:
    replies = ["the " * 32_000] * 64
    data = pack_parts([json_part("words", replies)])
    assert len(data) < 8_000
    assert unpack_parts(data).json("words") == replies


def test_what_could_not_be_read_is_not_written() -> None:
    with pytest.raises(BadGroupError, match="more than 4,000,000 values"):
        json_part("words", [0] * 5_000_000)


def test_a_window_that_needs_more_memory_than_readers_must_have_is_refused() -> None:
    wide = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    frame = wide.compress(b'"' + bytes(20)) + wide.flush()
    with pytest.raises(BadGroupError, match="cannot be decompressed"):
        unpack_parts(pack_parts([PartContent("words", JSON, 21, frame, b"")])).json("words")


@UNHURRIED
@given(st.binary())
def test_any_bytes_are_parts_or_refused(data: bytes) -> None:
    for tried in (data, MAGIC + data, frame(data, b"")):
        with pytest.raises(BadGroupError):
            unpack_parts(tried)


def test_the_checksum_is_crc_32() -> None:
    assert header_of(DATA)[0]["parts"][0]["crc32"] == zlib.crc32(struct.pack("<3i", 1, -2, 3))

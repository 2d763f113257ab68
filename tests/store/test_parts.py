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

from hermes_rl import jsontext
from hermes_rl.store.parts import (
    HEADER_AT,
    JSON,
    LONGEST_HEADER,
    MAGIC,
    PRELUDE,
    BadGroupError,
    Content,
    bits_part,
    column_part,
    flags_of,
    json_part,
    seal,
    sealed,
    unseal,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

NUMBERS = column_part("numbers", "i32", [1, -2, 3])
WORDS = json_part("words", {"a": "b"})
DATA = seal([NUMBERS, bits_part("marks", b"\1\0\1"), WORDS])


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header, and the body after it."""
    end = HEADER_AT + PRELUDE.unpack_from(data)[2]
    return jsontext.loads(data[HEADER_AT:end]), data[end + -end % 8 :]


def with_header(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The same parts after a header that its checksum calls right."""
    header, body = header_of(DATA)
    change(header)
    return sealed(jsontext.dumps(header), body)


def packed(text: bytes, size: int, name: str = "words") -> Content:
    return Content(name, JSON, size, zstd.compress(text), b"")


def test_parts_come_back_by_name() -> None:
    parts = unseal(DATA)
    assert parts.integers("numbers", "i32").tolist() == [1, -2, 3]
    assert flags_of(parts.bits("marks"), 3) == b"\1\0\1"
    assert parts.json("words") == {"a": "b"}


@UNHURRIED
@given(st.lists(st.integers(0, 1)).map(bytes))
def test_flags_come_back_from_bits(flags: bytes) -> None:
    assert flags_of(memoryview(bits_part("marks", flags).data), len(flags)) == flags


def test_the_first_flag_is_the_highest_bit_of_the_first_byte() -> None:
    assert bits_part("marks", b"\1\0\0\0\0\0\0\0\1").data == b"\x80\x80"


def test_columns_begin_at_whole_words() -> None:
    header, body = header_of(DATA)
    assert (len(DATA) - len(body)) % 8 == 0
    assert [part["offset"] % 8 for part in header["parts"]] == [0, 0, 0]


def test_numbers_are_read_in_place() -> None:
    assert unseal(DATA).integers("numbers", "i32").obj is DATA


def test_the_id_does_not_depend_on_the_order_of_keys_or_parts() -> None:
    one = seal([NUMBERS, json_part("words", {"a": 1, "b": 2})])
    other = seal([json_part("words", {"b": 2, "a": 1}), NUMBERS])
    assert unseal(one).id == unseal(other).id == unseal(other).computed_id()


def test_the_order_of_keys_is_kept() -> None:
    assert list(unseal(seal([json_part("words", {"b": 2, "a": 1})])).json("words")) == ["b", "a"]


def test_the_same_bytes_under_another_type_have_another_id() -> None:
    longer = Content("numbers", "u32", 3, NUMBERS.data, NUMBERS.canonical)
    assert unseal(seal([NUMBERS])).id != unseal(seal([longer])).id


def test_a_part_of_an_unknown_name_is_left_alone() -> None:
    parts = unseal(seal([NUMBERS, json_part("of_a_later_version", [1])]))
    assert parts.integers("numbers", "i32").tolist() == [1, -2, 3]
    assert parts.computed_id() == parts.id


def test_a_part_of_an_unknown_type_is_left_alone() -> None:
    parts = unseal(seal([NUMBERS, Content("of_a_later_version", "f16", 3, b"abcdef", b"abcdef")]))
    assert parts.integers("numbers", "i32").tolist() == [1, -2, 3]
    assert parts.computed_id() == parts.id


def test_a_header_may_say_more_than_this_version_reads() -> None:
    assert "numbers" in unseal(with_header(lambda header: header.update(later=1)))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "0 bytes are too few"),
        (b"{" * 64, "a group begins with"),
        (MAGIC + struct.pack("<III", 2, 0, 0), "version 2 of the format"),
        (MAGIC + struct.pack("<III", 1, 2**32 - 1, 0), "a header of 4294967295 bytes"),
        (MAGIC + struct.pack("<III", 1, LONGEST_HEADER + 1, 0) + bytes(LONGEST_HEADER + 1), "a header of 65537 bytes"),
        (MAGIC + struct.pack("<III", 1, 2, 0) + b"{}", "the header has another checksum"),
        (sealed(b"nonsense", b""), "the header cannot be read: ValueError"),
        (sealed(b"[]", b""), "the header cannot be read: TypeError"),
        (sealed(b"{}", b""), "the header cannot be read: KeyError"),
        (sealed(b"[" * 60_000, b""), "the header cannot be read: ValueError"),
        (sealed(b'{"id":"","parts":[{}]}', b""), "the header cannot be read: KeyError"),
        (sealed(b'{"id":1,"parts":[]}', b""), "the content id is no text"),
        (DATA + b"\0", "the last part ends at byte"),
        (DATA[:-1], "it is torn"),
    ],
)
def test_bytes_that_are_no_parts_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(BadGroupError, match=complaint):
        unseal(data)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"name": 1}, "name and type are texts"),
        ({"type": None}, "name and type are texts"),
        ({"size": -1}, "numbers that are none"),
        ({"size": True}, "numbers that are none"),
        ({"offset": 1.0}, "numbers that are none"),
        ({"size": 2**70}, "has 12 bytes for"),
        ({"length": 2**70}, "bytes for 3 of i32"),
        ({"size": 2}, "has 12 bytes for 2 of i32"),
        ({"offset": 8}, "does not begin where"),
        ({"name": "words"}, "'words' is there twice"),
        ({"type": "i64"}, "has 12 bytes for 3 of i64"),
        ({"type": "bits"}, "has 12 bytes for 3 of bits"),
        ({"type": "unheard", "length": 2**70}, "it is torn"),
    ],
)
def test_a_header_that_lies_is_refused(entry: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadGroupError, match=complaint):
        unseal(with_header(lambda header: header["parts"][0].update(entry)))


def test_bytes_between_parts_are_refused() -> None:
    header, body = header_of(DATA)
    assert body[12:16] == bytes(4)
    with pytest.raises(BadGroupError, match="does not begin where"):
        unseal(sealed(jsontext.dumps(header), body[:12] + b"\1" + body[13:]))


def test_a_changed_part_is_found_when_it_is_read() -> None:
    header, body = header_of(DATA)
    parts = unseal(sealed(jsontext.dumps(header), b"\0" + body[1:]))
    assert parts.json("words") == {"a": "b"}
    with pytest.raises(BadGroupError, match="'numbers' has another checksum"):
        parts.integers("numbers", "i32")


def test_a_missing_part_is_named() -> None:
    with pytest.raises(BadGroupError, match="the part 'more' is missing"):
        unseal(DATA).json("more")


def test_a_part_of_another_type_is_named() -> None:
    with pytest.raises(BadGroupError, match="'words' is of type 'json\\+zstd'; this version reads i32 or i64"):
        unseal(DATA).integers("words", "i32", "i64")


def test_bits_after_the_last_are_refused() -> None:
    with pytest.raises(BadGroupError, match="has bits after its last"):
        unseal(seal([Content("marks", "bits", 3, b"\xb0", b"")])).bits("marks")


def test_more_json_than_the_limit_is_refused_before_any_is_unpacked() -> None:
    with pytest.raises(BadGroupError, match="9 bytes of JSON are in it, by its header; the limit is 8"):
        unseal(DATA, limit=8)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (packed(b"[1]", 2), "does not unpack to the 2 bytes"),
        (packed(b"[1]", 4), "does not unpack to the 4 bytes"),
        (packed(b"", 0), "is not JSON"),
        (packed(b"[1", 2), "is not JSON"),
        (packed(b"[NaN]", 5), "is not JSON"),
        (packed(b'"\xff"', 3), "is not JSON"),
        (Content("words", JSON, 3, b"[1]", b""), "cannot be unpacked"),
        (Content("words", JSON, 3, b"", b""), "does not unpack to the 3 bytes"),
        (Content("words", JSON, 3, zstd.compress(b"[1]") + b"\0", b""), "does not unpack to the 3 bytes"),
        (Content("words", JSON, 3, zstd.compress(b"[1]")[:-1], b""), "does not unpack to the 3 bytes"),
    ],
)
def test_json_that_does_not_unpack_to_what_it_says_is_refused(content: Content, complaint: str) -> None:
    with pytest.raises(BadGroupError, match=complaint):
        unseal(seal([content])).json("words")


@pytest.mark.parametrize("depth", [250, 1000, 100_000])
def test_json_nested_deeply_raises_no_other_error(depth: int) -> None:
    """How deep Python itself goes differs from version to version."""
    deep = b"[" * depth + b"]" * depth
    with suppress(BadGroupError):
        unseal(seal([packed(deep, len(deep))])).computed_id()


def test_a_bomb_takes_no_more_memory_than_it_says() -> None:
    bomb = seal([packed(bytes(200 * 2**20), 1000)])
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(BadGroupError, match="does not unpack to the 1000 bytes"):
            unseal(bomb).json("words")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_window_that_needs_more_memory_than_readers_must_have_is_refused() -> None:
    wide = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    frame = wide.compress(b'"' + bytes(20)) + wide.flush()
    with pytest.raises(BadGroupError, match="cannot be unpacked"):
        unseal(seal([Content("words", JSON, 21, frame, b"")])).json("words")


@UNHURRIED
@given(st.binary())
def test_any_bytes_are_parts_or_refused(data: bytes) -> None:
    for tried in (data, MAGIC + data, sealed(data, b"")):
        with pytest.raises(BadGroupError):
            unseal(tried)


def test_the_checksum_is_crc_32() -> None:
    assert header_of(DATA)[0]["parts"][0]["crc32"] == zlib.crc32(struct.pack("<3i", 1, -2, 3))

import gzip
import tracemalloc
import zlib

import pytest

from hermes_rl.api.atropos.bodies import decode_body
from hermes_rl.http.errors import RefusedError

MEGABYTE = 2**20


def status_of(data: bytes, encoding: str = "gzip", limit: int = MEGABYTE) -> int:
    with pytest.raises(RefusedError) as refused:
        decode_body(data, encoding, limit)
    return refused.value.status


def test_a_body_may_be_packed_or_not() -> None:
    assert decode_body(gzip.compress(b"words"), "gzip", 10) == decode_body(b"words", "", 10) == b"words"


def test_gzip_in_several_members_is_read_to_the_end() -> None:
    assert decode_body(gzip.compress(b"one") + gzip.compress(b"two") + bytes(8), "GZIP", 10) == b"onetwo"


def test_gzip_that_ends_early_is_refused_wherever_it_ends() -> None:
    packed = gzip.compress(bytes(range(256)) * 20)
    assert {status_of(packed[:end]) for end in range(1, len(packed))} == {400}


def test_what_is_no_gzip_is_refused() -> None:
    assert status_of(b"words") == status_of(gzip.compress(b"words") + b"more") == 400


def test_a_changed_byte_in_gzip_is_refused() -> None:
    packed = bytearray(gzip.compress(b"words" * 100))
    packed[-6] ^= 1
    assert status_of(bytes(packed)) == 400


def test_another_packing_is_refused() -> None:
    assert status_of(zlib.compress(b"words"), "deflate") == 415


def test_a_body_beyond_the_limit_is_refused() -> None:
    assert status_of(bytes(11), "", 10) == 413


def test_what_unpacks_beyond_the_limit_is_refused_before_it_takes_the_memory() -> None:
    bomb = gzip.compress(bytes(200 * MEGABYTE))
    tracemalloc.start()
    try:
        assert status_of(bomb, limit=4 * MEGABYTE) == 413
        assert tracemalloc.get_traced_memory()[1] < 8 * MEGABYTE
    finally:
        tracemalloc.stop()

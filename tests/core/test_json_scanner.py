"""Byte ranges of JSON, compared with what the json module reads."""

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.core import json_scanner

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), VALUES, max_size=6), st.sampled_from([None, 1]), st.booleans())
def test_members_are_those_of_the_object(value: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    raw = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    found = {
        json.loads(b'"' + member.key + b'"'): json.loads(member.value.slice(raw))
        for member in json_scanner.members(raw)
    }
    assert found == value


@settings(deadline=None)
@given(st.lists(VALUES, max_size=6))
def test_elements_are_those_of_the_array(value: list[Any]) -> None:
    raw = json.dumps(value).encode()
    assert [json.loads(span.slice(raw)) for span in json_scanner.elements(raw)] == value


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), VALUES))
def test_what_is_left_out_is_told_with_its_place(value: dict[str, Any]) -> None:
    raw = json.dumps(value).encode()
    kept, left = json_scanner.split_members(raw, 0, frozenset({b"a", b"b"}))
    assert json.loads(kept) == {name: one for name, one in value.items() if name not in "ab"}
    assert {name.decode(): json.loads(span.slice(raw)) for name, span in left.items()} == {
        name: one for name, one in value.items() if name in "ab"
    }


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(json_scanner.members(raw))


@pytest.mark.parametrize(
    "raw", [b"", b"[", b'{"a"', b'{"a":', b'{"a":[1,', b'{"a":"x', b'{"a":{"b":"}', b"nul", b"{1:2}"]
)
def test_what_is_torn_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="byte"):
        list(json_scanner.members(raw))


@pytest.mark.parametrize("raw", [b'{"a":1,}', b'{"a":1 "b":2}', b'{"a":1,,"b":2}', b'{,"a":1}', b'{"a" 1}', b'{"a":1]'])
def test_a_wrong_comma_or_colon_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected .* at byte"):
        list(json_scanner.members(raw))


@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_value_is_refused_beyond_the_depth_limit(brackets: tuple[bytes, bytes]) -> None:
    def nested(depth: int) -> bytes:
        return brackets[0] * depth + b"1" + brackets[1] * depth

    raw = nested(json_scanner.MAX_DEPTH)
    assert json_scanner.value_end(raw, 0) == len(raw)
    with pytest.raises(ValueError, match="more than 500 levels"):
        json_scanner.value_end(nested(json_scanner.MAX_DEPTH + 2), 0)


HOSTILE = {
    "escaped quotes, not closed": lambda n: b'["' + b'\\"x' * n + b"]",
    "escaped quotes, closed": lambda n: b'["' + b'\\"x' * n + b'"]',
    "open arrays": lambda n: b"[1," * n + b"]",
    "arrays of numbers, not closed": lambda n: b"[" + b"[1]," * n,
    "arrays of strings, not closed": lambda n: b"[" + b'["]"],' * n,
    "deep arrays before a far bracket": lambda n: b"[1," * 400 + b"{}," * n + b"]",
    "quotes": lambda n: b"[" + b'"x' * n + b"]",
}


@pytest.mark.parametrize("build", HOSTILE.values(), ids=HOSTILE)
def test_the_time_grows_linearly(build: Callable[[int], bytes]) -> None:
    """Sixteen times the size takes about 16 times as long; a quadratic scan takes 256 times as long."""

    def seconds(raw: bytes) -> float:
        began = time.thread_time()
        with contextlib.suppress(ValueError):
            json_scanner.value_end(raw, 0)
        return time.thread_time() - began

    small, large = (min(seconds(build(n)) for _ in range(3)) for n in (2_000, 32_000))
    assert large < 64 * max(small, 0.0001)

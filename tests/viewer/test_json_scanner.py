"""Where the parts of a JSON line stand, against the json module's own reading."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.viewer import json_scanner

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


def test_a_line_that_never_closes_its_quote_is_refused_in_time_that_grows_with_its_length() -> None:
    with pytest.raises(ValueError, match="no end"):
        list(json_scanner.members(b'{"a":["' + b'\\"x' * 300_000))

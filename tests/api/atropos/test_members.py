import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.api.atropos.members import MAX_ELEMENTS, Value, split_object, split_objects
from hermes_rl.core import fast_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(st.characters(codec="utf-8")), JSON, max_size=5)
INDENTS = st.sampled_from([None, 0, 2])


def read(value: Value) -> Any:
    """What the pieces say, each read alone."""
    if value.elements is not None:
        return [fast_json.loads(bytes(element)) for element in value.elements]
    return fast_json.loads(bytes(value.text))


@given(OBJECTS, INDENTS, st.booleans())
def test_the_pieces_of_an_object_are_its_members(thing: dict[str, Any], indent: int | None, plain: bool) -> None:
    text = json.dumps(thing, indent=indent, ensure_ascii=plain).encode()
    assert {name: read(value) for name, value in split_object(text).items()} == thing


@given(st.lists(OBJECTS, max_size=3), INDENTS)
def test_the_pieces_of_a_list_are_its_objects(things: list[dict[str, Any]], indent: int | None) -> None:
    text = json.dumps(things, indent=indent).encode()
    got = [{name: read(value) for name, value in members.items()} for members in split_objects(text)]
    assert got == things


@given(OBJECTS, st.data())
def test_what_is_no_json_does_not_pass_for_it(thing: dict[str, Any], data: st.DataObject) -> None:
    text = bytearray(json.dumps(thing).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at : at + data.draw(st.integers(0, 2))] = data.draw(
        st.sampled_from([b"", b"[", b"]", b'"', b"{", b"}", b",", b":"])
    )
    try:
        whole = fast_json.loads(bytes(text))
    except ValueError:
        whole = None
    try:
        pieces = {name: read(value) for name, value in split_object(bytes(text)).items()}
    except ValueError:
        pieces = None
    assert pieces == (whole if isinstance(whole, dict) else None)


def test_an_array_of_arrays_is_cut_into_its_elements() -> None:
    value = split_object(b'{"tokens": [[1, 2], [3]]}')["tokens"]
    assert [bytes(element) for element in value.elements or ()] == [b"[1, 2]", b"[3]"]


def test_an_array_of_numbers_stays_whole() -> None:
    assert split_object(b'{"scores": [1, 2]}')["scores"].elements is None


def test_brackets_in_texts_are_no_brackets() -> None:
    value = split_object(b'{"messages": [["]", "\\"["], [{"a": "}]"}]]}')["messages"]
    assert [bytes(element) for element in value.elements or ()] == [b'["]", "\\"["]', b'[{"a": "}]"}]']


def test_more_elements_than_a_group_can_have_are_refused() -> None:
    with pytest.raises(ValueError, match=f"more than {MAX_ELEMENTS}"):
        split_object(b'{"tokens": [' + b"[]," * MAX_ELEMENTS + b"[]]}")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,}', b"{} {}", b'{"a":[[1]', b"1"]
)
def test_what_is_no_whole_object_cannot_be_cut(text: bytes) -> None:
    with pytest.raises(ValueError, match="at byte"):
        split_object(text)


def test_escaped_quotes_without_an_end_are_refused() -> None:
    with pytest.raises(ValueError, match="not closed"):
        split_object(b'{"a":["' + b'\\"x' * 300_000 + b"]")

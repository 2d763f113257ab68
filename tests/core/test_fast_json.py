import math
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.core import fast_json

# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@dataclass
class Question:
    text: str


class Shown:
    def __str__(self) -> str:
        return "shown"


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def again(value: Any) -> Any:
    return fast_json.loads(fast_json.dumps(value))


@UNHURRIED
@given(JSON)
def test_json_comes_back_as_it_went(value: Any) -> None:
    assert again(value) == value


@UNHURRIED
@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_any_text_a_model_can_emit_is_written(text: str) -> None:
    assert isinstance(again({"content": text})["content"], str)


def test_half_a_surrogate_pair_is_written_as_a_replacement_character() -> None:
    assert again(["a\ud83db", "\ude00"]) == ["a\ufffdb", "\ufffd"]


def test_half_a_surrogate_pair_is_read_as_a_replacement_character() -> None:
    assert fast_json.loads(b'{"text": "a\\ud83db"}') == {"text": "a\ufffdb"}


def test_a_surrogate_in_the_text_itself_is_read_as_a_replacement_character() -> None:
    assert fast_json.loads('["a\ud83db"]') == ["a\ufffdb"]


def test_a_whole_surrogate_pair_is_its_character() -> None:
    assert fast_json.loads(b'"\\ud83d\\ude00"') == "\U0001f600"


def test_a_surrogate_in_a_key_does_not_lose_the_value() -> None:
    assert again({"\ud83d": 1}) == {"\ufffd": 1}


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**40, -(10**40)])
def test_whole_numbers_of_any_length_are_exact(number: int) -> None:
    assert again({"n": number}) == {"n": number}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("beside", ["plain", "\ud83d"])
def test_a_number_that_json_does_not_know_is_null(number: float, beside: str) -> None:
    assert again([number, beside])[0] is None


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ((1, 2), [1, 2]),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({1}), [1]),
        (MappingProxyType({"a": 1}), {"a": 1}),
        ({1: "a", None: "b", False: "c"}, {"1": "a", "null": "b", "false": "c"}),
        ({(1, 2): "a"}, {"(1, 2)": "a"}),
        (Question("why"), {"text": "why"}),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (Shown(), "shown"),
    ],
)
@pytest.mark.parametrize("beside", ["plain", "\ud83d"])
def test_what_is_not_json_is_written_as_its_nearest_form(value: Any, written: Any, beside: str) -> None:
    assert again([value, beside])[0] == written


def test_a_dataclass_that_holds_a_surrogate_is_written() -> None:
    assert again(Question("a\ud83d")) == {"text": "a\ufffd"}


def test_an_object_that_cannot_be_shown_is_named_by_its_type() -> None:
    assert "Unshowable" in again([Unshowable()])[0]


def test_a_value_that_contains_itself_is_written() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    assert fast_json.TOO_DEEP.encode() in fast_json.dumps(endless)


def test_a_value_nested_deeper_than_can_be_written_is_cut() -> None:
    nested = fast_json.loads("[" * 300 + "]" * 300)
    assert fast_json.TOO_DEEP.encode() in fast_json.dumps(nested)


@pytest.mark.parametrize(
    "text",
    ["", "{", "nul", "[1,]", "{'a': 1}", "NaN", '["\\ud83d", NaN]', '["\\ud83d"', '"\\x"', "[" * 2000, b"\xff"],
)
def test_what_is_not_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the reason is the decoder's)
        fast_json.loads(text)


def test_nesting_that_would_exhaust_the_stack_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="deep"):
        fast_json.loads("[" * 100_000 + '"\\ud83d"')

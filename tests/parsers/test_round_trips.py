"""A format's parser parses what its writer wrote, for any values."""

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.parsers import get_parser
from tests.parsers.cases import BY_NAME, FORMATS, Format, tool

# A slow machine is not a failure.
UNHURRIED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
BARE = ("qwen3_coder", "glm45", "glm47")
WRITTEN_IN_JSON = [known.name for known in FORMATS if known.name not in BARE]
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}

NAMES = st.from_regex(re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,20}"), fullmatch=True)
WORDS = st.text(st.characters(exclude_characters="<>[]{}｜|`;,", exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


def values(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        SCALARS | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=8,
    )


def texts_of(f: Format) -> st.SearchStrategy[str]:
    """Any text, often with the format's own markers in it."""
    return st.text() | st.lists(st.sampled_from([*f.markup, '"', "\\", "}", "\n", " "]), max_size=5).map("".join)


@pytest.mark.parametrize("name", WRITTEN_IN_JSON)
@UNHURRIED
@given(data=st.data(), before=WORDS, after=WORDS)
def test_calls_written_in_json_are_parsed_back(name: str, data: st.DataObject, before: str, after: str) -> None:
    f = BY_NAME[name]
    texts = texts_of(f)
    calls = data.draw(
        st.lists(st.tuples(NAMES, st.dictionaries(texts, values(texts), max_size=4)), min_size=1, max_size=4)
    )
    parsed = get_parser(f.parser).parse(before + f.text(*(f.call(*call) for call in calls)) + after)
    assert not parsed.broken
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == calls
    assert "".join(parsed.content.split()) == "".join((before + after).split())


@pytest.mark.parametrize("name", BARE)
@UNHURRIED
@given(data=st.data(), before=WORDS, after=WORDS)
def test_calls_written_as_bare_text_are_typed_by_the_schema(
    name: str, data: st.DataObject, before: str, after: str
) -> None:
    f = BY_NAME[name]
    texts = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]))
    calls = data.draw(
        st.lists(
            st.tuples(NAMES, st.dictionaries(NAMES, values(texts), max_size=4)),
            min_size=1,
            max_size=4,
            unique_by=lambda call: call[0],
        )
    )
    tools = [tool(called, **{key: schema_of(value) for key, value in arguments.items()}) for called, arguments in calls]
    parsed = get_parser(f.parser).parse(before + f.text(*(f.call(*call) for call in calls)) + after, tools)
    assert not parsed.broken
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == calls
    assert "".join(parsed.content.split()) == "".join((before + after).split())


def schema_of(value: Any) -> dict[str, Any]:
    return {"type": ["integer", "null"]} if value is None else {"type": KINDS[type(value)]}


@pytest.mark.parametrize("name", [known.name for known in FORMATS])
@UNHURRIED
@given(data=st.data())
def test_nothing_a_model_writes_raises(name: str, data: st.DataObject) -> None:
    f = BY_NAME[name]
    pieces = [
        *f.markup,
        *f.broken,
        *f.around,
        f.close,
        f.call("now", {"x": "y"}),
        "<think>",
        "</think>",
        '"',
        "{",
        "}",
        "\\",
    ]
    anything = st.text(st.characters(exclude_categories=()))
    text = "".join(data.draw(st.lists(st.sampled_from(pieces) | anything, max_size=20)))
    parsed = get_parser(f.parser).parse(text)
    for call in parsed.calls:
        assert call.name
    for broken in parsed.broken:
        assert broken.reason

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.messages import ToolCall
from hermes_rl.extensions import PARSERS
from hermes_rl.parsers import get_parser, list_parsers
from hermes_rl.parsers.tool_format import Tools

# A slow machine is not a failure.
UNHURRIED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
BARE = ("glm45", "glm47", "qwen3_coder")
MARKERS = [marker for name in PARSERS.builtin for marker in get_parser(name).markers]
IN_JSON = [name for name in PARSERS.builtin if name not in BARE]
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}

NAMES = st.from_regex(re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,20}"), fullmatch=True)
TEXTS = st.text() | st.lists(
    st.sampled_from([*MARKERS, "</think>", '"', "\\", "}", "\n"]),
    max_size=5,
).map("".join)
PLAIN = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]))
SCALARS = st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


def calls_text(name: str, calls: list[ToolCall]) -> str:
    return get_parser(name).tool_format.calls_text(calls)


def tools_text(name: str, tools: Tools) -> str:
    return get_parser(name).tool_format.tools_text(tools)


def result_text(name: str, content: str, call_id: str = "") -> str:
    return get_parser(name).tool_format.result_text(content, call_id)


def values(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        SCALARS | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=8,
    )


def calls_of(keys: st.SearchStrategy[str], texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    arguments = st.dictionaries(keys, values(texts), max_size=4)
    return st.lists(st.tuples(NAMES, arguments), min_size=1, max_size=4, unique_by=lambda call: call[0])


def made(calls: list[tuple[str, Any]]) -> list[ToolCall]:
    return [ToolCall.make(name, json.dumps(arguments)) for name, arguments in calls]


def schema(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    properties = {key: {"type": KINDS[type(value)]} for key, value in arguments.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


@pytest.mark.parametrize("name", IN_JSON)
@UNHURRIED
@given(calls=calls_of(TEXTS, TEXTS))
def test_calls_written_as_json_are_parsed_back(name: str, calls: list[tuple[str, Any]]) -> None:
    parsed = get_parser(name).parse(calls_text(name, made(calls)))
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == calls


@pytest.mark.parametrize("name", BARE)
@UNHURRIED
@given(calls=calls_of(NAMES, PLAIN))
def test_calls_written_as_bare_text_are_parsed_back(name: str, calls: list[tuple[str, Any]]) -> None:
    parsed = get_parser(name).parse(calls_text(name, made(calls)), [schema(*call) for call in calls])
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == calls


@pytest.mark.parametrize("name", list_parsers())
def test_written_calls_leave_no_other_text(name: str) -> None:
    parsed = get_parser(name).parse(calls_text(name, made([("ls", {"path": "x"}), ("now", {})])))
    assert (parsed.content, parsed.broken) == ("", ())


@pytest.mark.parametrize("name", list_parsers())
@pytest.mark.parametrize("arguments", ["[1, 2]", '"ls"', "null", "{not json", ""])
def test_arguments_that_are_not_an_object_can_be_written(name: str, arguments: str) -> None:
    text = calls_text(name, [ToolCall.make("ls", arguments)])
    assert [call.name for call in get_parser(name).parse(text).calls] == ["ls"]


@pytest.mark.parametrize("name", list_parsers())
def test_the_prompt_names_every_tool(name: str) -> None:
    text = tools_text(name, [schema("read_file", {"path": "x"}), schema("now", {})])
    assert '"read_file"' in text and '"now"' in text


@pytest.mark.parametrize("name", list_parsers())
def test_the_prompt_shows_the_markers_of_the_format(name: str) -> None:
    text, written = (
        tools_text(name, [schema("ls", {})]),
        calls_text(name, made([("ls", {"path": "x"})])),
    )
    assert all(marker in text for marker in MARKERS if marker in written)


def test_an_id_that_mistral_accepts_is_written_with_its_call() -> None:
    text = calls_text("mistral", [ToolCall.make("ls", "{}", "abcdefghi")])
    assert get_parser("mistral").parse(text).calls[0].id == "abcdefghi"


def test_kimi_calls_are_numbered_from_zero() -> None:
    text = calls_text("kimi_k2", made([("ls", {}), ("now", {})]))
    assert [call.id for call in get_parser("kimi_k2").parse(text).calls] == ["functions.ls:0", "functions.now:1"]


def test_kimi_calls_keep_the_ids_of_the_model() -> None:
    text = calls_text("kimi_k2", [ToolCall.make("ls", "{}", "functions.ls:7")])
    assert get_parser("kimi_k2").parse(text).calls[0].id == "functions.ls:7"


def test_a_result_is_wrapped_in_the_tags_of_its_format() -> None:
    assert result_text("hermes", "417") == "<tool_response>\n417\n</tool_response>"


def test_a_result_is_not_wrapped_twice() -> None:
    once = result_text("hermes", "417")
    assert result_text("hermes", once) == once


def test_a_kimi_result_names_its_call() -> None:
    assert result_text("kimi_k2", "417", "functions.ls:0") == "## Return of functions.ls:0\n417"


def test_llama_results_are_not_wrapped() -> None:
    assert result_text("llama3_json", "417") == "417"


def test_the_error_for_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="hermes"):
        calls_text("nobody", [])

"""Known defects of other parsers of these formats, each tested for every format where it can happen."""

import json
from typing import Any

import pytest

from hermes_rl.parsers import ParsedText, get_parser
from tests.parsers.cases import BY_NAME, FORMATS, TOOLS, Format

EVERY = [known.name for known in FORMATS]
WRITTEN_IN_JSON = [known.name for known in FORMATS if known.name not in {"qwen3_coder", "glm45", "glm47"}]


def parse(f: Format, text: str) -> ParsedText:
    return get_parser(f.parser).parse(text, TOOLS)


def arguments_of(parsed: ParsedText) -> list[Any]:
    return [json.loads(call.arguments) for call in parsed.calls]


@pytest.mark.parametrize("name", EVERY)
def test_arguments_on_several_lines_are_not_dropped(name: str) -> None:
    f = BY_NAME[name]
    arguments = {"path": "a.txt", "content": "one\ntwo\n"}
    assert arguments_of(parse(f, f.text(f.pretty("write_file", arguments)))) == [arguments]


@pytest.mark.parametrize("name", EVERY)
def test_a_bad_block_does_not_drop_its_neighbours(name: str) -> None:
    f = BY_NAME[name]
    for bad in f.broken:
        parsed = parse(f, f.text(f.call("now", {}), bad, bad, f.call("now", {})))
        assert (len(parsed.calls), len(parsed.broken)) == (2, 2), bad


@pytest.mark.parametrize("name", WRITTEN_IN_JSON)
@pytest.mark.parametrize("arguments", [[1, {"a": []}], []])
def test_an_array_as_arguments_is_kept_for_validation(name: str, arguments: list[Any]) -> None:
    f = BY_NAME[name]
    assert arguments_of(parse(f, f.text(f.call("now", arguments)))) == [arguments]


@pytest.mark.parametrize("name", ["hermes", "qwen", "longcat", "mistral", "llama3_json", "llama4_json"])
@pytest.mark.parametrize(("written", "read"), [('""', ""), ("null", "{}"), ('"{}"', "{}"), ('{"a": 1}', '{"a":1}')])
def test_arguments_are_always_a_string(name: str, written: str, read: str) -> None:
    f = BY_NAME[name]
    [call] = parse(f, f.text(f.call("now", {"x": 0}).replace('{"x": 0}', written))).calls
    assert call.arguments == read


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v3_1", "kimi_k2"])
def test_missing_arguments_become_an_empty_object(name: str) -> None:
    f = BY_NAME[name]
    assert arguments_of(parse(f, f.text(f.call("now", {}).replace("{}", "")))) == [{}]


@pytest.mark.parametrize("name", EVERY)
def test_a_call_inside_reasoning_is_not_a_call(name: str) -> None:
    f = BY_NAME[name]
    text = f"<think>Perhaps {f.text(f.call('now', {}))}?</think> No."
    assert parse(f, text) == ParsedText(content=text)


@pytest.mark.parametrize("name", EVERY)
def test_text_before_a_lone_think_end_is_reasoning(name: str) -> None:
    f = BY_NAME[name]
    thought = f"Perhaps {f.text(f.call('now', {}))}?</think>"
    parsed = parse(f, f"{thought} No: {f.text(f.call('terminal', {'command': 'ls'}))}")
    assert ([call.name for call in parsed.calls], parsed.content) == (["terminal"], f"{thought} No:")


@pytest.mark.parametrize("name", EVERY)
def test_a_call_in_unclosed_reasoning_is_reported(name: str) -> None:
    f = BY_NAME[name]
    text = f"<think>So {f.text(f.call('now', {}))}"
    parsed = parse(f, text)
    assert (parsed.calls, len(parsed.broken), parsed.content) == ((), 1, text)
    assert parsed.broken[0].reason == "it is inside <think>, which was never closed with </think>"


@pytest.mark.parametrize("name", EVERY)
def test_a_think_end_inside_a_value_is_part_of_the_value(name: str) -> None:
    f = BY_NAME[name]
    arguments = {"path": "a.md", "content": "Close it with </think>."}
    assert arguments_of(parse(f, f.text(f.call("write_file", arguments)))) == [arguments]


def test_a_kimi_id_is_kept() -> None:
    f = BY_NAME["kimi_k2"]
    [call] = parse(f, f.text(f.call("now", {}))).calls
    assert call.id == "functions.now:0"


@pytest.mark.parametrize("name", ["mistral", "mistral_named"])
def test_a_mistral_id_has_nine_letters_or_digits(name: str) -> None:
    f = BY_NAME[name]
    one, other = parse(f, f.text(f.call("now", {}), f.call("now", {}))).calls
    assert one.id != other.id
    for call in (one, other):
        assert len(call.id) == 9
        assert call.id.isalnum()


@pytest.mark.parametrize(
    ("written", "kept"), [("abcDEF123", True), ("short", False), ("with-dash", False), ("tenletters", False)]
)
def test_a_mistral_id_from_the_model_is_kept_if_valid(written: str, kept: bool) -> None:
    listed = f'[TOOL_CALLS] [{{"name": "now", "arguments": {{}}, "id": "{written}"}}]'
    named = f"[TOOL_CALLS]now[CALL_ID]{written}[ARGS]{{}}"
    for text in (listed, named):
        [call] = parse(BY_NAME["mistral"], text).calls
        assert (call.id == written) is kept


def test_a_mistral_list_with_too_many_calls_is_truncated_and_reported() -> None:
    f = BY_NAME["mistral"]
    parsed = parse(f, f.text(*[f.call("now", {})] * 600))
    assert (len(parsed.calls), len(parsed.broken)) == (500, 1)
    assert "more than 500" in parsed.broken[0].reason


@pytest.mark.parametrize("name", WRITTEN_IN_JSON)
def test_excessive_nesting_is_broken(name: str) -> None:
    f = BY_NAME[name]
    deep = f.call("now", {"x": 0}).replace('"x": 0', f'"x": {"[" * 300}{"]" * 300}')
    parsed = parse(f, f.text(deep, f.call("now", {})))
    assert (arguments_of(parsed), len(parsed.broken)) == ([{}], 1)
    assert "nested deeper than 200" in parsed.broken[0].reason


@pytest.mark.parametrize("name", ["llama3_json", "llama4_json"])
def test_code_and_data_in_braces_are_content(name: str) -> None:
    text = 'Use `if (x) { y({"a": 1}); }` or {"name": "Ada", "age": 36} and {"broken": '
    assert get_parser(name).parse(text) == ParsedText(content=text)

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.parsers import ParsedText, get_parser
from hermes_rl.parsers.marked_text import MAX_CALLS

# A slow machine is not a failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def parse(text: str) -> ParsedText:
    return get_parser("hermes").parse(text)


def written(name: str, arguments: Any) -> str:
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSE}"


def arguments_of(text: str) -> list[Any]:
    return [json.loads(call.arguments) for call in parse(text).calls]


def test_text_without_a_call_is_unchanged() -> None:
    text = "  Hello </tool_call> {}\n"
    assert parse(text) == ParsedText(content=text)


def test_a_call_has_its_name_and_arguments() -> None:
    [call] = parse(written("terminal", {"command": "ls"})).calls
    assert (call.name, json.loads(call.arguments)) == ("terminal", {"command": "ls"})


def test_several_calls_keep_their_order() -> None:
    text = written("a", {}) + "\n" + written("b", {}) + written("a", {"x": 1})
    assert [call.name for call in parse(text).calls] == ["a", "b", "a"]


def test_two_calls_in_one_text_have_different_ids() -> None:
    one, other = parse(written("a", {}) * 2).calls
    assert one.id != other.id


def test_the_text_around_the_calls_is_the_content() -> None:
    assert parse(f"Before. {written('a', {})} Between. {written('b', {})} After.").content == (
        "Before.  Between.  After."
    )


def test_a_broken_call_does_not_drop_its_neighbours() -> None:
    parsed = parse(written("a", {}) + f"{OPEN}{{not json}}{CLOSE}" + written("b", {}))
    assert [call.name for call in parsed.calls] == ["a", "b"]


def test_a_broken_call_is_reported_with_its_text_and_reason() -> None:
    [broken] = parse(f"{OPEN} {{not json}} {CLOSE}").broken
    assert broken.text == "{not json}"
    assert broken.reason.startswith("not valid JSON")


def test_a_broken_call_is_not_part_of_the_content() -> None:
    assert parse(f"Hm. {OPEN}{{not json}}{CLOSE}").content == "Hm."


def test_an_unclosed_string_does_not_swallow_the_next_call() -> None:
    parsed = parse(f'{OPEN}{{"name": "a{CLOSE} and {written("b", {})}')
    assert [call.name for call in parsed.calls] == ["b"]
    assert len(parsed.broken) == 1


def test_an_unclosed_last_call_counts() -> None:
    assert arguments_of(written("a", {"x": 1}).removesuffix(CLOSE)) == [{"x": 1}]


def test_a_truncated_last_call_is_broken() -> None:
    parsed = parse(written("a", {}) + OPEN + '{"name": "b", "argum')
    assert ([call.name for call in parsed.calls], len(parsed.broken)) == (["a"], 1)


def test_a_call_opened_before_the_previous_was_closed_counts() -> None:
    text = written("a", {}).removesuffix(CLOSE) + written("b", {})
    assert [call.name for call in parse(text).calls] == ["a", "b"]


def test_nested_braces_belong_to_the_arguments() -> None:
    arguments = {"code": "if (x) { y({}) }", "deep": {"er": [{"a": {}}]}}
    assert arguments_of(written("a", arguments)) == [arguments]


@pytest.mark.parametrize("tag", [OPEN, CLOSE, OPEN + "{}" + CLOSE])
def test_a_tag_inside_a_string_is_part_of_the_string(tag: str) -> None:
    parsed = parse(f"Writing. {written('write_file', {'content': f'say {tag} so'})}")
    assert [json.loads(call.arguments) for call in parsed.calls] == [{"content": f"say {tag} so"}]
    assert (parsed.content, parsed.broken) == ("Writing.", ())


def test_unicode_is_preserved() -> None:
    assert arguments_of(written("a", {"text": "žluťoučký 日本 \U0001f600"})) == [{"text": "žluťoučký 日本 \U0001f600"}]


def test_a_lone_surrogate_does_not_break_a_call() -> None:
    assert arguments_of(OPEN + '{"name": "a", "arguments": {"x": "\\ud83d"}}' + CLOSE) == [{"x": "\ufffd"}]


def test_a_number_over_64_bits_is_exact() -> None:
    assert arguments_of(written("a", {"n": 2**80})) == [{"n": 2**80}]


def test_arguments_written_as_a_string_stay_that_string() -> None:
    [call] = parse(written("a", '{"x": 1}')).calls
    assert call.arguments == '{"x": 1}'


@pytest.mark.parametrize(
    "block", ['{"name": "a"}', '{"name": "a", "arguments": null}', '{"name": "a", "arguments": {}}']
)
def test_a_call_without_arguments_has_an_empty_object(block: str) -> None:
    assert arguments_of(OPEN + block + CLOSE) == [{}]


@pytest.mark.parametrize("block", ["", "  \n"])
def test_an_empty_call_is_broken(block: str) -> None:
    assert len(parse(OPEN + block + CLOSE).broken) == 1


@pytest.mark.parametrize("block", ["{}", '{"arguments": {}}', '{"name": ""}', '{"name": null}', '{"name": 3}'])
def test_a_call_without_a_name_is_broken(block: str) -> None:
    [broken] = parse(OPEN + block + CLOSE).broken
    assert broken.reason == 'the object has no "name"'


@pytest.mark.parametrize(("block", "kind"), [('[{"name": "a"}]', "list"), ('"a"', "str"), ("1", "int")])
def test_a_call_that_is_not_an_object_is_broken(block: str, kind: str) -> None:
    [broken] = parse(OPEN + block + CLOSE).broken
    assert broken.reason == f"expected a JSON object, got {kind}"


def test_text_after_the_object_makes_the_call_broken() -> None:
    assert len(parse(OPEN + '{"name": "a"} and more' + CLOSE).broken) == 1


def test_a_model_that_repeats_the_tag_does_not_take_quadratic_time() -> None:
    began = time.perf_counter()
    parsed = parse((OPEN + '{"name": "a"') * 20_000 + "\n" * 100_000)
    assert time.perf_counter() - began < 10
    assert len(parsed.broken) == MAX_CALLS + 1
    assert "more than 500 calls" in parsed.broken[-1].reason


def test_calls_over_the_limit_are_reported() -> None:
    parsed = parse(written("a", {}) * (MAX_CALLS + 5))
    assert (len(parsed.calls), len(parsed.broken)) == (MAX_CALLS, 1)
    assert parsed.broken[0].text == written("a", {}) * 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
TAG_FREE = st.text().filter(lambda text: "<" not in text and ">" not in text)
TAGGED = st.lists(st.sampled_from([OPEN, CLOSE, '{"name": "a"', '"', "\\", "{", "}", "\\ud83d", "\n", "1" * 30])).map(
    "".join
)


@UNHURRIED
@given(st.lists(st.tuples(TAG_FREE, st.text(min_size=1), st.dictionaries(st.text() | TAGGED, JSON | TAGGED))), TAG_FREE)
def test_written_calls_are_parsed_back(calls: list[tuple[str, str, dict[str, Any]]], after: str) -> None:
    text = "".join(said + written(name, arguments) for said, name, arguments in calls) + after
    parsed = parse(text)
    assert not parsed.broken
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == [call[1:] for call in calls]
    said = "".join(said for said, _, _ in calls) + after
    assert parsed.content == (said.strip() if calls else said)


@UNHURRIED
@given(st.lists(st.text(alphabet=st.characters(exclude_categories=())) | TAGGED).map("".join))
def test_nothing_a_model_writes_raises(text: str) -> None:
    parse(text)


@pytest.mark.parametrize("depth", [300, 900, 100_000])
@pytest.mark.parametrize("inside", ["", '"\\ud83d"'])
def test_excessive_nesting_does_not_raise(depth: int, inside: str) -> None:
    nested = "[" * depth + inside + "]" * depth
    parsed = parse(f'{OPEN}{{"name": "a", "arguments": {nested}}}{CLOSE}')
    assert len(parsed.calls) + len(parsed.broken) == 1

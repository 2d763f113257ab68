from types import SimpleNamespace
from typing import Any

import pytest

from hermes_rl.core.messages import Message, ToolCall, content_text, final_response, tool_calls, tools_used


def raw_call(**function: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": function}


def test_a_call_given_as_a_dict_keeps_the_models_own_text() -> None:
    call = ToolCall.from_raw(raw_call(name="terminal", arguments='{ "command" :"ls"}'))
    assert (call.id, call.name, call.arguments) == ("call_1", "terminal", '{ "command" :"ls"}')


def test_a_call_given_as_an_sdk_object_is_the_same_as_its_dict() -> None:
    function = SimpleNamespace(name="terminal", arguments="{}")
    given = SimpleNamespace(id="call_1", type="function", function=function)
    assert ToolCall.from_raw(given) == ToolCall.from_raw(raw_call(name="terminal", arguments="{}"))


def test_one_of_ours_is_left_as_it_is() -> None:
    call = ToolCall.make("terminal", "{}")
    assert ToolCall.from_raw(call) is call


def test_arguments_that_came_parsed_become_text() -> None:
    assert ToolCall.from_raw(raw_call(name="t", arguments={"command": "ls"})).arguments == '{"command":"ls"}'


def test_arguments_left_out_are_an_empty_object() -> None:
    assert ToolCall.from_raw(raw_call(name="t")).arguments == "{}"


def test_broken_arguments_are_kept_as_written() -> None:
    assert ToolCall.from_raw(raw_call(name="t", arguments='{"command": ')).arguments == '{"command": '


@pytest.mark.parametrize("missing", [None, "", 7])
def test_a_call_without_a_usable_id_gets_one_of_its_own(missing: Any) -> None:
    one, other = (ToolCall.from_raw({"id": missing, "function": {"name": "t"}}) for _ in range(2))
    assert one.id.startswith("call_")
    assert one.id != other.id


@pytest.mark.parametrize("raw", [None, "text", 3, {}, {"function": None}, {"function": "t"}, {"function": {"name": 3}}])
def test_what_is_no_call_has_an_empty_name(raw: Any) -> None:
    assert not ToolCall.from_raw(raw).name


def test_a_call_goes_back_to_the_wire_as_it_came() -> None:
    raw = raw_call(name="terminal", arguments="{}")
    assert ToolCall.from_raw(raw).as_dict() == raw


CONVERSATION: list[Message] = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "first", "tool_calls": [raw_call(name="b"), raw_call(name="a")]},
    {"role": "tool", "content": "done", "tool_calls": [raw_call(name="not the assistant's")]},
    {"role": "assistant", "content": None, "tool_calls": [raw_call(name="b"), raw_call(name="")]},
    {"role": "assistant", "content": "", "tool_calls": None},
]


def test_tool_calls_are_the_assistants_in_order() -> None:
    assert [call.name for call in tool_calls(CONVERSATION)] == ["b", "a", "b", ""]


def test_tools_used_keeps_repeats_and_leaves_out_the_nameless() -> None:
    assert tools_used(CONVERSATION) == ["b", "a", "b"]


def test_the_final_response_is_the_last_text_the_assistant_wrote() -> None:
    assert final_response(CONVERSATION) == "first"


def test_without_an_assistants_text_the_final_response_is_empty() -> None:
    assert not final_response([{"role": "user", "content": "go"}])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "text", "text": None}, "bare", 3], ""),
        (5, ""),
    ],
)
def test_content_text_joins_the_text_parts(content: Any, text: str) -> None:
    assert content_text(content) == text

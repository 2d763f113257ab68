from typing import Any

import pytest

from hermes_rl.core.errors import EndpointError
from hermes_rl.core.trajectory import Usage
from hermes_rl.inference.completion import ChatCompletion, ChatMessage

ENDPOINT = "http://model/v1"


def read(body: Any) -> ChatCompletion:
    return ChatCompletion.parse(body, ENDPOINT)


def said(**message: Any) -> ChatMessage:
    return read({"choices": [{"message": message}]}).choices[0].message


def test_attributes_are_named_as_in_the_openai_client() -> None:
    completion = read(
        {
            "id": "chatcmpl-1",
            "model": "m",
            "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1},
        }
    )
    choice = completion.choices[0]
    assert (completion.id, completion.model, completion.usage) == ("chatcmpl-1", "m", Usage(3, 1))
    assert (choice.index, choice.message.content, choice.finish_reason) == (0, "hi", "stop")


def test_each_choice_has_its_place() -> None:
    completion = read({"choices": [{"message": {"content": text}} for text in "ab"]})
    assert [(choice.index, choice.message.content) for choice in completion.choices] == [(0, "a"), (1, "b")]


def test_content_given_as_parts_is_their_text() -> None:
    assert said(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]).content == "ab"


def test_null_content_stays_none() -> None:
    assert said(content=None).content is None


def test_tool_calls_keep_the_models_own_text() -> None:
    [call] = said(tool_calls=[{"id": "c", "function": {"name": "t", "arguments": '{"x": '}}]).tool_calls
    assert (call.id, call.name, call.arguments) == ("c", "t", '{"x": ')


def test_tool_arguments_sent_as_an_object_become_text() -> None:
    [call] = said(tool_calls=[{"id": "c", "function": {"name": "t", "arguments": {"x": 1}}}]).tool_calls
    assert call.arguments == '{"x":1}'


def test_a_tool_call_without_an_id_gets_one() -> None:
    [call] = said(tool_calls=[{"function": {"name": "t", "arguments": "{}"}}]).tool_calls
    assert call.id.startswith("call_")


@pytest.mark.parametrize("calls", [None, [], "none", {}])
def test_no_tool_calls_are_an_empty_tuple(calls: Any) -> None:
    assert said(content="x", tool_calls=calls).tool_calls == ()


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning_content": "", "reasoning": "hm"},
        {"reasoning_details": [{"type": "reasoning.encrypted"}, {"type": "reasoning.text", "text": "hm"}]},
    ],
)
def test_reasoning_is_found_wherever_it_was_put(message: dict[str, Any]) -> None:
    assert said(**message).reasoning_content == "hm"


@pytest.mark.parametrize("details", [None, 7, True, "text", [], [None, 3], {"text": "hm"}])
def test_reasoning_details_of_another_shape_are_no_reasoning(details: Any) -> None:
    assert said(content="x", reasoning_details=details).reasoning_content is None


@pytest.mark.parametrize("usage", [None, [], {}, {"prompt_tokens": "3", "completion_tokens": None}])
def test_usage_that_was_not_said_is_none(usage: Any) -> None:
    assert read({"choices": [{"message": {}}], "usage": usage}).usage == Usage(None, None)


@pytest.mark.parametrize("reason", [None, 3, {}])
def test_a_finish_reason_is_text_or_none(reason: Any) -> None:
    assert read({"choices": [{"message": {}, "finish_reason": reason}]}).choices[0].finish_reason is None


@pytest.mark.parametrize(
    "body", [None, [], "text", {}, {"choices": None}, {"choices": {}}, {"choices": [None]}, {"choices": [{}]}]
)
def test_a_body_that_is_no_completion_is_a_bad_response_of_that_endpoint(body: Any) -> None:
    with pytest.raises(EndpointError, match=ENDPOINT) as caught:
        read(body)
    assert caught.value.cause == "bad_response"


def test_an_error_object_sent_with_status_200_is_shown() -> None:
    with pytest.raises(EndpointError, match="model is overloaded"):
        read({"error": {"message": "model is overloaded"}})


def test_an_empty_list_of_choices_has_a_cause_of_its_own() -> None:
    with pytest.raises(EndpointError) as caught:
        read({"choices": []})
    assert caught.value.cause == "empty_choices"

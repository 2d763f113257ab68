"""Chat Completions: the forms of a request, and what is refused."""

from typing import Any

import pytest

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.core.trajectory import Usage
from hermes_rl.gateway.dialects import CHAT
from hermes_rl.gateway.dialects.previous_responses import PreviousResponses
from hermes_rl.gateway.request import AgentRequest, BadRequestError
from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice
from tests.support.dialects import LOOK, Line, told
from tests.support.sdk_agents import ChatAgent

CALL = ToolCall.make("look", '{"at": "x"}', "call_1")


def asked(*messages: Message, **body: Any) -> AgentRequest:
    return CHAT.parse_request({"model": "m", "messages": list(messages) or [{"role": "user", "content": "hi"}], **body})


def only(message: Message) -> Message:
    (read,) = asked(message).messages
    return read


def events(request: AgentRequest, *answers: ChatCompletion) -> list[Any]:
    lines = [line for answer in answers for line in b"".join(CHAT.events(request, answer)).split(b"\n\n") if line]
    return [line if line == b"data: [DONE]" else fast_json.loads(line.removeprefix(b"data: ")) for line in lines]


def test_a_developer_is_a_system() -> None:
    assert only({"role": "developer", "content": "be brief"}) == {"role": "system", "content": "be brief"}


def test_parts_of_text_are_lines() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}]
    assert only({"role": "user", "content": parts})["content"] == "one\ntwo"


def test_parts_of_an_answer_are_one_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "refusal", "refusal": "no"}]
    assert only({"role": "assistant", "content": parts})["content"] == "oneno"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_what_is_no_text_is_refused_with_its_place(kind: str) -> None:
    with pytest.raises(BadRequestError, match=kind) as refused:
        asked({"role": "user", "content": [{"type": "text", "text": "see"}, {"type": kind, kind: {}}]})
    assert refused.value.param == "messages.0.content.1.type"


@pytest.mark.parametrize(
    "field",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    ],
)
def test_thinking_is_read_from_where_the_agent_keeps_it(field: dict[str, Any]) -> None:
    assert only({"role": "assistant", "content": "yes", **field})["reasoning_content"] == "hm"


def test_what_the_sdk_adds_to_a_message_is_left_out() -> None:
    sent: Message = {
        "role": "assistant",
        "content": "yes",
        "refusal": None,
        "audio": None,
        "annotations": [],
        "tool_calls": None,
    }
    assert only(sent) == {"role": "assistant", "content": "yes"}


def test_a_tool_is_read_without_what_a_prompt_does_not_show() -> None:
    strict = {"type": "function", "function": {**LOOK["function"], "strict": True}, "cache_control": {}}
    assert asked(tools=[strict]).tools == [LOOK]


def test_a_tool_without_parameters_has_none() -> None:
    (tool,) = asked(tools=[{"type": "function", "function": {"name": "now"}}]).tools
    assert tool["function"] == {"name": "now", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "look"}}, {"type": "function", "function": {"name": "look"}}),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}, "required"),
    ],
)
def test_a_choice_of_tools_is_read(choice: Any, read: Any) -> None:
    assert asked(tools=[LOOK], tool_choice=choice).tool_choice == read


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "custom", "custom": {"name": "patch"}}]),
        ("tool_choice", "maybe"),
        ("tool_choice", {"type": "function", "function": {"name": "missing"}}),
        ("tool_choice", {"type": "custom", "custom": {"name": "patch"}}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
        ("web_search_options", {}),
        ("modalities", ["text", "audio"]),
        ("n", 0),
        ("n", 17),
        ("n", True),
        ("max_tokens", 0),
        ("max_tokens", "many"),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", 3),
        ("stream", "yes"),
        ("model", 3),
        ("messages", []),
        ("messages", [{"role": "king", "content": "x"}]),
        ("messages", [{"role": "user", "content": None}]),
        ("messages", [{"role": "tool", "content": "x"}]),
        ("messages", [{"role": "function", "name": "look", "content": "x"}]),
    ],
)
def test_a_wrong_field_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequestError) as refused:
        asked(**{"tools": [LOOK], field: value})
    assert refused.value.param is not None and refused.value.param.startswith(field)


@pytest.mark.parametrize("kind", ["text", "json_object"])
def test_a_format_that_the_prompt_asks_for_is_left_to_the_policy(kind: str) -> None:
    assert asked(response_format={"type": kind}).messages


def test_sampling_settings_are_not_read() -> None:
    assert asked(temperature="hot", top_p=3, seed=1, logit_bias={}, logprobs=True, reasoning_effort="low") == asked()


def test_the_longest_answer_is_read_from_either_field() -> None:
    assert asked(max_tokens=5).max_tokens == 5
    assert asked(max_tokens=5, max_completion_tokens=7).max_tokens == 7


def test_an_answer_ends_before_its_stop_sequence() -> None:
    request = asked(stop=["Observation:", "\n\n"])
    (choice,) = CHAT.answer(request, told("Action: look\nObservation: none\n\n"))["choices"]
    assert choice["message"]["content"] == "Action: look\n" and choice["finish_reason"] == "stop"


def test_the_content_of_an_answer_with_nothing_but_calls_is_null() -> None:
    (choice,) = CHAT.answer(asked(tools=[LOOK]), told("", CALL))["choices"]
    assert choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls"


def test_an_empty_answer_has_empty_content() -> None:
    (choice,) = CHAT.answer(asked(), told(None))["choices"]
    assert choice["message"]["content"] == ""


def test_every_choice_is_answered() -> None:
    both = (Choice(0, ChatMessage("assistant", "a"), "stop"), Choice(1, ChatMessage("assistant", "b"), "length"))
    answer = ChatCompletion("chatcmpl-1", "policy", both, Usage(3, 4))
    choices = CHAT.answer(asked(n=2), answer)["choices"]
    assert [(one["index"], one["message"]["content"], one["finish_reason"]) for one in choices] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]
    streamed = [one["choices"][0] for one in events(asked(n=2, stream=True), answer)[:-1]]
    assert [one["index"] for one in streamed if one["finish_reason"]] == [0, 1]


def test_a_stream_counts_its_tokens_only_when_asked() -> None:
    plain = events(asked(stream=True), told("hi"))
    counted = events(asked(stream=True, stream_options={"include_usage": True}), told("hi"))
    assert all("usage" not in one for one in plain[:-1])
    assert all(one["usage"] is None for one in counted[:-2])
    assert counted[-2]["choices"] == [] and counted[-2]["usage"]["total_tokens"] == 18


def test_a_stream_begins_with_the_role_and_ends_with_done() -> None:
    first, *_, last = events(asked(stream=True), told("hi"))
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert last == b"data: [DONE]"


def test_a_long_answer_comes_in_several_pieces() -> None:
    pieces = [one["choices"][0]["delta"].get("content") for one in events(asked(stream=True), told("word " * 400))[:-1]]
    assert len([piece for piece in pieces if piece]) == 8
    assert "".join(filter(None, pieces)) == "word " * 400


def test_the_key_is_a_bearers() -> None:
    line = Line(CHAT, [told("hi")])
    ChatAgent(line).ask("hello")
    assert CHAT.key(line.headers[0]) == "key-1"
    assert CHAT.key({}) is None and CHAT.key({"authorization": "Basic abc"}) is None


# --- functions, as they were before tools ---

FUNCTIONS = {"functions": [LOOK["function"]], "function_call": "auto"}


def test_functions_of_old_are_tools() -> None:
    assert asked(**FUNCTIONS).tools == [LOOK]
    assert asked(functions=[LOOK["function"]], function_call={"name": "look"}).tool_choice == {
        "type": "function",
        "function": {"name": "look"},
    }


def test_a_call_is_answered_to_functions_of_old_in_their_form() -> None:
    (choice,) = CHAT.answer(asked(**FUNCTIONS), told("", CALL))["choices"]
    assert choice["message"]["function_call"] == {"name": "look", "arguments": '{"at": "x"}'}
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]


def test_a_call_is_streamed_to_functions_of_old_in_their_form() -> None:
    deltas = [one["choices"][0]["delta"] for one in events(asked(stream=True, **FUNCTIONS), told("", CALL))[:-1]]
    called = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert called[0]["name"] == "look" and "".join(one["arguments"] for one in called) == '{"at": "x"}'


def test_a_call_of_old_comes_back_with_its_id() -> None:
    earlier, user = PreviousResponses(), {"role": "user", "content": "hi"}
    first = CHAT.parse_request({"messages": [user], **FUNCTIONS}, earlier)
    earlier.add(first, told("", CALL))
    called = CHAT.answer(first, told("", CALL))["choices"][0]["message"]
    result = {"role": "function", "name": "look", "content": "a door"}
    read = CHAT.parse_request({"messages": [user, called, result], **FUNCTIONS}, earlier).messages
    assert read[1] == {"role": "assistant", "content": "", "tool_calls": [CALL.as_dict()]}
    assert read[2] == {"role": "tool", "tool_call_id": "call_1", "content": "a door", "name": "look"}


def test_a_call_of_old_that_nobody_remembers_is_read_all_the_same() -> None:
    user = {"role": "user", "content": "hi"}
    called = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
    earlier = PreviousResponses()
    earlier.add(CHAT.parse_request({"messages": [user], **FUNCTIONS}), told("", CALL))
    read = CHAT.parse_request({"messages": [user, called], **FUNCTIONS}, earlier).messages
    assert read[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}


def test_an_engine_that_says_stop_after_calls_is_told_as_calls() -> None:
    answer = ChatCompletion("chatcmpl-1", "p", (Choice(0, ChatMessage("assistant", "", (CALL,)), "stop"),), Usage())
    assert CHAT.answer(asked(), answer)["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_of_another_type_is_refused() -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": ""}}
    with pytest.raises(BadRequestError) as refused:
        asked({"role": "assistant", "content": None, "tool_calls": [custom]})
    assert refused.value.param == "messages.0.tool_calls.0.type"

"""Responses: the forms of a request, earlier answers by name, the stream, and what is refused."""

from typing import Any

import pytest

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.gateway.dialects import RESPONSES
from hermes_rl.gateway.dialects.previous_responses import PreviousResponses
from hermes_rl.gateway.dialects.reply import seal
from hermes_rl.gateway.request import AgentRequest, BadRequestError
from hermes_rl.inference.completion import ChatCompletion
from tests.support.dialects import LOOK, Line, told
from tests.support.sdk_agents import ResponsesAgent

CALL = ToolCall.make("look", '{"at": "x"}', "call_1")
FLAT = {"type": "function", **LOOK["function"], "strict": True}
HELLO = {"role": "user", "content": "hello"}
SEAL = ["reasoning.encrypted_content"]


def asked(given: Any = "hello", earlier: PreviousResponses | None = None, **body: Any) -> AgentRequest:
    return RESPONSES.parse_request({"model": "m", "input": given, **body}, earlier)


def output(answer: ChatCompletion, **body: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = RESPONSES.answer(asked(**body), answer)["output"]
    return items


def events(request: AgentRequest, answer: ChatCompletion) -> list[tuple[str, Any]]:
    read = []
    for one in b"".join(RESPONSES.events(request, answer)).split(b"\n\n")[:-1]:
        name, data = one.split(b"\n")
        read.append((name.removeprefix(b"event: ").decode(), fast_json.loads(data.removeprefix(b"data: "))))
    return read


def test_text_alone_is_a_users() -> None:
    assert asked("hello").messages == [HELLO]


def test_instructions_stand_first() -> None:
    assert asked(instructions="be brief").messages == [{"role": "system", "content": "be brief"}, HELLO]


def test_a_message_may_leave_its_type_out() -> None:
    typed = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]}
    assert asked([typed, HELLO]).messages == [{"role": "system", "content": "be brief"}, HELLO]


def test_a_result_is_text_or_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    items = [{"type": "function_call_output", "call_id": "c", "output": one} for one in ("a", parts)]
    assert [message["content"] for message in asked(items).messages] == ["a", "a\nb"]


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
def test_what_is_no_text_is_refused_with_its_place(kind: str) -> None:
    with pytest.raises(BadRequestError, match=kind) as refused:
        asked([{"role": "user", "content": [{"type": kind}]}])
    assert refused.value.param == "input.0.content.0.type"


# --- what an assistant said ---


def test_the_items_of_an_answer_are_one_message() -> None:
    items = output(told("yes", CALL, ToolCall.make("look", "{}", "call_2"), thinking="hm"))
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    (message,) = asked(items).messages
    assert message["content"] == "yes" and message["reasoning_content"] == "hm" and len(message["tool_calls"]) == 2


def test_the_items_of_two_answers_in_a_row_are_two_messages() -> None:
    items = output(told("one", number=1)) + output(told("", CALL, number=2))
    assert [message["content"] for message in asked(items).messages] == ["one", ""]


def test_items_without_ids_are_told_apart_by_their_order() -> None:
    items = output(told("one", number=1)) + output(told("two", thinking="hm", number=2))
    bare = [{name: value for name, value in item.items() if name != "id"} for item in items]
    assert [message["content"] for message in asked(bare).messages] == ["one", "two"]


def test_items_that_another_provider_named_are_joined_by_their_order() -> None:
    items = [
        {"type": "reasoning", "id": "rs_68a", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "id": "msg_68b", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
        {"type": "function_call", "id": "fc_68c", "call_id": "call_1", "name": "look", "arguments": '{"at": "x"}'},
    ]
    assert asked(items).messages == [
        {"role": "assistant", "content": "yes", "reasoning_content": "hm", "tool_calls": [CALL.as_dict()]}
    ]


def test_thinking_is_sealed_for_those_who_ask() -> None:
    answer = told("yes", thinking="hm")
    assert "encrypted_content" not in output(answer)[0]
    thought, text = output(answer, include=SEAL)
    del thought["content"]
    assert asked([thought, text]).messages[0]["reasoning_content"] == "hm"


def test_a_seal_that_is_not_ours_says_nothing() -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    assert "reasoning_content" not in asked([item, HELLO]).messages[0]


def test_a_seal_counts_more_than_a_summary() -> None:
    item = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "short"}],
        "encrypted_content": seal("hm"),
    }
    assert asked([item]).messages[0]["reasoning_content"] == "hm"


# --- earlier answers ---


def kept(answer: ChatCompletion, **body: Any) -> PreviousResponses:
    earlier = PreviousResponses()
    earlier.add(asked(**body), answer)
    return earlier


def test_a_conversation_goes_on_from_the_answer_it_names() -> None:
    earlier = kept(told("yes", number=1))
    (name,) = {RESPONSES.answer(asked(), told("yes", number=1))["id"]}
    assert asked("more", earlier, previous_response_id=name).messages == [
        HELLO,
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "more"},
    ]


def test_instructions_are_not_inherited() -> None:
    earlier = kept(told("yes", number=1), instructions="be brief")
    named = {"previous_response_id": f"resp_{1:032x}"}
    assert [one["role"] for one in asked("more", earlier, **named).messages] == ["user", "assistant", "user"]
    renewed = asked("more", earlier, instructions="be long", **named).messages
    assert renewed[0] == {"role": "system", "content": "be long"} and len(renewed) == 4


def test_a_chain_of_names_holds_the_whole_conversation() -> None:
    earlier = PreviousResponses()
    request = asked("0", earlier)
    for number in range(5):
        earlier.add(request, told(f"a{number}", number=number))
        request = asked(f"{number + 1}", earlier, previous_response_id=f"resp_{number:032x}")
    assert [one["content"] for one in request.messages] == ["0", "a0", "1", "a1", "2", "a2", "3", "a3", "4", "a4", "5"]


def test_items_may_be_named_one_by_one() -> None:
    answer = told("yes", CALL, thinking="hm", number=1)
    named = [{"type": "item_reference", "id": item["id"]} for item in output(answer)]
    untyped = [{"id": item["id"]} for item in named]
    expected = {"role": "assistant", "content": "yes", "reasoning_content": "hm", "tool_calls": [CALL.as_dict()]}
    assert asked([HELLO, *named], kept(answer)).messages == [HELLO, expected]
    assert asked([HELLO, *untyped], kept(answer)).messages == [HELLO, expected]


@pytest.mark.parametrize("earlier", [None, PreviousResponses()])
def test_an_answer_that_nobody_knows_is_refused(earlier: PreviousResponses | None) -> None:
    with pytest.raises(BadRequestError, match="not found"):
        asked("more", earlier, previous_response_id="resp_1")
    with pytest.raises(BadRequestError, match="not found"):
        asked([{"type": "item_reference", "id": "msg_hrl_1_0"}], earlier)


def test_an_answer_that_is_not_to_be_stored_is_not() -> None:
    with pytest.raises(BadRequestError, match="not found"):
        asked("more", kept(told("yes", number=1), store=False), previous_response_id=f"resp_{1:032x}")


def test_only_the_latest_answers_are_kept() -> None:
    earlier = PreviousResponses(maximum=2)
    for number in range(3):
        earlier.add(asked(), told("yes", number=number))
    assert earlier.find(f"{0:032x}") is None and earlier.find(f"{2:032x}") is not None


def test_what_two_answers_have_in_common_is_kept_once() -> None:
    earlier, history = PreviousResponses(), list[Message]([HELLO])
    for number in range(2):
        earlier.add(asked([dict(one) for one in history]), told("yes", number=number))
        history += [{"role": "assistant", "content": "yes"}, HELLO]
    first, second = earlier.find(f"{0:032x}"), earlier.find(f"{1:032x}")
    assert first is not None and second is not None
    assert all(one is other for one, other in zip(first.messages, second.messages, strict=False))


# --- fields ---


def test_a_tool_is_a_function_laid_flat() -> None:
    assert asked(tools=[FLAT]).tools == [LOOK]


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ("required", "required"),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "auto"),
    ],
)
def test_a_choice_of_tools_is_read(choice: Any, read: Any) -> None:
    assert asked(tools=[FLAT], tool_choice=choice).tool_choice == read


BUILT_IN = "web_search web_search_preview file_search computer_use_preview code_interpreter mcp image_generation shell"


@pytest.mark.parametrize("kind", [*BUILT_IN.split(), "local_shell", "custom", "apply_patch", "namespace"])
def test_a_tool_that_only_the_provider_has_is_refused(kind: str) -> None:
    with pytest.raises(BadRequestError, match=kind) as refused:
        asked(tools=[FLAT, {"type": kind}])
    assert refused.value.param == "tools.1.type"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input", []),
        ("input", None),
        ("input", [{"type": "web_search_call", "id": "ws_1"}]),
        ("input", [{"role": "king", "content": "x"}]),
        ("input", [{"type": "function_call", "name": "look", "arguments": "{}"}]),
        ("background", True),
        ("conversation", "conv_1"),
        ("prompt", {"id": "pmpt_1"}),
        ("text", {"format": {"type": "json_schema", "name": "x", "schema": {}}}),
        ("tool_choice", {"type": "web_search"}),
        ("tool_choice", {"type": "function", "name": "missing"}),
        ("max_output_tokens", 0),
        ("store", "yes"),
        ("instructions", 3),
    ],
)
def test_a_wrong_field_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequestError) as refused:
        RESPONSES.parse_request({"model": "m", "input": "hello", field: value})
    assert refused.value.param is not None and refused.value.param.startswith(field)


def test_the_answer_repeats_what_was_asked() -> None:
    answer = RESPONSES.answer(asked(instructions="be brief", metadata={"a": "b"}, tools=[FLAT]), told("yes"))
    assert (answer["instructions"], answer["metadata"], answer["tools"]) == ("be brief", {"a": "b"}, [FLAT])
    assert answer["model"] == "m" and answer["store"] is True


# --- the stream ---


def test_the_stream_has_the_providers_order() -> None:
    names = [name.removeprefix("response.") for name, _ in events(asked(stream=True), told("yes", CALL, thinking="hm"))]
    part = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
    assert names == [
        "created",
        "in_progress",
        "output_item.added",
        *[one.format("reasoning_text") for one in part],
        "output_item.done",
        "output_item.added",
        *[one.format("output_text") for one in part],
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


def test_the_events_are_numbered_and_named() -> None:
    stream = events(asked(stream=True), told("yes", CALL, thinking="hm"))
    assert [data["sequence_number"] for _, data in stream] == list(range(len(stream)))
    assert all(name == data["type"] for name, data in stream)


def test_the_stream_ends_with_the_whole_answer() -> None:
    request, answer = asked(stream=True), told("yes", CALL, thinking="hm")
    last, whole = events(request, answer)[-1][1]["response"], RESPONSES.answer(request, answer)
    assert {**last, "created_at": 0} == fast_json.loads(fast_json.dumps({**whole, "created_at": 0}))


def test_an_answer_that_was_cut_is_incomplete() -> None:
    name, data = events(asked(stream=True), told("ye", finish="length"))[-1]
    assert name == "response.incomplete" and data["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_the_key_is_a_bearers() -> None:
    line = Line(RESPONSES, [told("hi")])
    ResponsesAgent(line).ask("hello")
    assert RESPONSES.key(line.headers[0]) == "key-1"

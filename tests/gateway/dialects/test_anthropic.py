"""Anthropic's Messages: the forms of a request, the stream, and what is refused."""

from typing import Any

import pytest

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.gateway.dialects import ANTHROPIC
from hermes_rl.gateway.dialects.reply import INVALID, seal
from hermes_rl.gateway.request import AgentRequest, BadRequestError
from hermes_rl.inference.completion import ChatCompletion
from tests.support.dialects import LOOK, Line, told
from tests.support.sdk_agents import AnthropicAgent

CALL = ToolCall.make("look", '{"at": "x"}', "call_1")
TOOL = {"name": "look", "description": "Look somewhere.", "input_schema": LOOK["function"]["parameters"]}
HELLO = {"role": "user", "content": "hello"}


def asked(*messages: Any, **body: Any) -> AgentRequest:
    return ANTHROPIC.parse_request({"model": "m", "max_tokens": 9, "messages": list(messages) or [HELLO], **body})


def said(*blocks: Any) -> Message:
    """What an assistant's blocks are read as."""
    return asked({"role": "assistant", "content": list(blocks)}, HELLO).messages[0]


def events(request: AgentRequest, answer: ChatCompletion) -> list[tuple[str, Any]]:
    read = []
    for one in b"".join(ANTHROPIC.events(request, answer)).split(b"\n\n")[:-1]:
        name, data = one.split(b"\n")
        read.append((name.removeprefix(b"event: ").decode(), fast_json.loads(data.removeprefix(b"data: "))))
    return read


def block_types(answer: dict[str, Any]) -> list[str]:
    return [block["type"] for block in answer["content"]]


def test_a_system_prompt_is_text_or_blocks() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    assert asked(system="a").messages[0] == {"role": "system", "content": "a"}
    assert asked(system=blocks).messages[0] == {"role": "system", "content": "a\nb"}
    assert asked(system=[]).messages == [HELLO]


def test_results_and_words_of_one_message_stand_in_their_order() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "one"},
        {"type": "tool_result", "tool_use_id": "call_2", "is_error": True},
        {"type": "text", "text": "go"},
        {"type": "text", "text": "on"},
    ]
    assert asked({"role": "user", "content": blocks}).messages == [
        {"role": "tool", "tool_call_id": "call_1", "content": "one"},
        {"role": "tool", "tool_call_id": "call_2", "content": ""},
        {"role": "user", "content": "go\non"},
    ]


def test_a_result_in_blocks_is_lines() -> None:
    found = {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "C"}]}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "one"}, found]}
    assert asked({"role": "user", "content": [result]}).messages[0]["content"] == "one\nT\nS\nC"


@pytest.mark.parametrize(
    "source",
    [{"type": "text", "media_type": "text/plain", "data": "hi"}, {"type": "content", "content": "hi"}],
)
def test_a_document_of_text_is_read(source: Any) -> None:
    blocks = [{"type": "document", "source": source}]
    assert asked({"role": "user", "content": blocks}).messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}},
        {"type": "container_upload", "file_id": "f"},
        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": {}}]},
    ],
)
def test_what_is_no_text_is_refused(block: Any) -> None:
    with pytest.raises(BadRequestError, match="not supported"):
        asked({"role": "user", "content": [block]})


def test_a_part_of_an_assistants_message_that_the_provider_made_is_refused() -> None:
    with pytest.raises(BadRequestError, match="server_tool_use") as refused:
        said({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}})
    assert refused.value.param == "messages.0.content.0.type"


# --- thinking ---


def test_thinking_is_told_only_to_those_who_asked_for_it() -> None:
    answer = told("yes", thinking="hm")
    assert block_types(ANTHROPIC.answer(asked(), answer)) == ["text"]
    assert block_types(ANTHROPIC.answer(asked(thinking={"type": "disabled"}), answer)) == ["text"]
    for kind in ("enabled", "adaptive", "between_tools"):
        assert block_types(ANTHROPIC.answer(asked(thinking={"type": kind}), answer)) == ["thinking", "text"]


def test_thinking_that_is_not_shown_comes_back_by_its_signature() -> None:
    request = asked(thinking={"type": "adaptive", "display": "omitted"})
    thought, text = ANTHROPIC.answer(request, told("yes", thinking="hm"))["content"]
    assert thought["thinking"] == ""
    assert said(thought, text) == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


def test_redacted_thinking_of_ours_is_read_and_anothers_is_not() -> None:
    assert said({"type": "redacted_thinking", "data": seal("hm")})["reasoning_content"] == "hm"
    assert "reasoning_content" not in said({"type": "redacted_thinking", "data": "EmwKAhgBEgy"})


def test_thinking_with_anothers_signature_is_read() -> None:
    assert said({"type": "thinking", "thinking": "hm", "signature": "Eqo"})["reasoning_content"] == "hm"


# --- tools ---


def test_a_tool_is_a_function() -> None:
    assert asked(tools=[{"type": "custom", **TOOL, "cache_control": {}, "strict": True}]).tools == [LOOK]


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_a_choice_of_tools_is_read(choice: Any, read: Any) -> None:
    assert asked(tools=[TOOL], tool_choice=choice).tool_choice == read


@pytest.mark.parametrize("written", ['{"at": ', "", "[1]", "7", '{"INVALID_JSON": "x"}'])
def test_arguments_that_are_no_object_come_back_as_they_were_written(written: str) -> None:
    answer = told("", ToolCall.make("look", written, "call_1"))
    (block,) = ANTHROPIC.answer(asked(), answer)["content"]
    assert block["input"] == {INVALID: written}
    assert said(block)["tool_calls"][0]["function"]["arguments"] == written


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", None),
        ("max_tokens", 0),
        ("messages", []),
        ("messages", [{"role": "user", "content": []}]),
        ("messages", [{"role": "tool", "content": "x"}]),
        ("messages", [HELLO, {"role": "assistant", "content": "It is"}]),
        ("tools", [{"type": "web_search_20250305", "name": "web_search"}]),
        ("tools", [{"type": "bash_20250124", "name": "bash"}]),
        ("tools", [{"name": "look"}]),
        ("tool_choice", {"type": "tool", "name": "missing"}),
        ("tool_choice", {"type": "some"}),
        ("mcp_servers", [{"type": "url", "url": "https://x", "name": "x"}]),
        ("container", "c"),
        ("output_format", {"type": "json_schema", "schema": {}}),
        ("output_config", {"format": {"type": "json_schema", "schema": {}}}),
        ("stop_sequences", [1]),
        ("thinking", "yes"),
    ],
)
def test_a_wrong_field_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadRequestError) as refused:
        asked(**{field: value})
    assert refused.value.param is not None and refused.value.param.startswith(field)


def test_what_changes_no_prompt_is_not_read() -> None:
    extra = {"temperature": 3, "top_k": 1, "metadata": {"user_id": "u"}, "service_tier": "auto", "betas": ["x"]}
    assert asked(**extra, context_management={"edits": []}, output_config={"effort": "low"}) == asked()


# --- answers ---


def test_a_stop_sequence_ends_the_text_and_is_named() -> None:
    answer = ANTHROPIC.answer(asked(stop_sequences=["</a>"]), told("<a>yes</a>more"))
    assert answer["content"] == [{"type": "text", "text": "<a>yes"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "</a>")


def test_an_empty_answer_has_a_block_to_read() -> None:
    assert ANTHROPIC.answer(asked(), told(None))["content"] == [{"type": "text", "text": ""}]


def test_the_stream_has_the_providers_order() -> None:
    request = asked(thinking={"type": "adaptive"}, stream=True)
    names = [
        f"{name}:{data.get('delta', {}).get('type', '')}" if name == "content_block_delta" else name
        for name, data in events(request, told("yes", CALL, thinking="hm"))
    ]
    assert names == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta:thinking_delta",
        "content_block_delta:signature_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta:text_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta:input_json_delta",
        "content_block_delta:input_json_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_every_event_says_its_name_twice() -> None:
    assert all(name == data["type"] for name, data in events(asked(stream=True), told("yes", CALL)))


def test_the_key_is_in_either_header() -> None:
    line = Line(ANTHROPIC, [told("hi")])
    AnthropicAgent(line).ask("hello")
    assert ANTHROPIC.key(line.headers[0]) == "key-1"
    assert ANTHROPIC.key({"authorization": "Bearer key-2"}) == "key-2"
    assert ANTHROPIC.key({}) is None


def test_a_system_may_speak_within_the_conversation() -> None:
    turns = [HELLO, {"role": "assistant", "content": "hi"}, {"role": "system", "content": "be brief"}]
    assert asked(*turns).messages[-1] == {"role": "system", "content": "be brief"}


@pytest.mark.parametrize("seal", ["hermes-rl:%%", "hermes-rl:/w==", "hermes-rl:é", 7, None])
def test_a_damaged_signature_says_nothing(seal: Any) -> None:
    assert "reasoning_content" not in said({"type": "thinking", "thinking": "", "signature": seal})

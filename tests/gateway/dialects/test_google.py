"""What only Google's dialect has: methods in the path, two spellings of a field, calls without ids, its own schemas."""

from typing import Any

import pytest

from hermes_rl.core.messages import ToolCall
from hermes_rl.gateway.dialects import GOOGLE, PreviousResponses
from hermes_rl.gateway.request import AgentRequest, BadRequestError
from tests.support.dialects import LOOK, Line, told
from tests.support.sdk_agents import GoogleAgent

HELLO = {"role": "user", "parts": [{"text": "hello"}]}
DECLARED = {"functionDeclarations": [{"name": "look", "parametersJsonSchema": {"type": "object"}}]}


def read(contents: Any = (HELLO,), **fields: Any) -> AgentRequest:
    return GOOGLE.parse_request({"contents": list(contents), **fields})


@pytest.mark.parametrize("version", ["v1", "v1beta", "v1alpha"])
def test_the_path_names_the_model_and_the_method(version: str) -> None:
    assert GOOGLE.match(f"/{version}/models/gemini-3:generateContent") == {"model": "gemini-3", "stream": False}
    assert GOOGLE.match(f"/{version}/models/m:streamGenerateContent") == {"model": "m", "stream": True}
    assert GOOGLE.match(f"/{version}/models/m:countTokens") is None


def test_a_field_may_be_written_with_underscores() -> None:
    asked = read(
        system_instruction={"parts": [{"text": "Be brief."}]},
        generation_config={
            "max_output_tokens": 9,
            "stop_sequences": ["END"],
            "thinking_config": {"include_thoughts": True},
        },
        tools=[{"function_declarations": [{"name": "look", "parameters_json_schema": {"type": "object"}}]}],
        tool_config={"function_calling_config": {"mode": "ANY", "allowed_function_names": ["look"]}},
    )
    assert asked.messages[0] == {"role": "system", "content": "Be brief."}
    assert (asked.max_tokens, asked.stop, asked.show_reasoning) == (9, ["END"], True)
    assert asked.tool_choice == {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize(
    ("mode", "choice"), [("AUTO", "auto"), ("VALIDATED", "auto"), ("ANY", "required"), ("NONE", "none")]
)
def test_a_mode_is_a_choice_of_tools(mode: str, choice: str) -> None:
    assert read(tools=[DECLARED], toolConfig={"functionCallingConfig": {"mode": mode}}).tool_choice == choice


def test_without_a_mode_there_is_no_choice() -> None:
    assert read(tools=[DECLARED]).tool_choice is None


def test_googles_own_schema_becomes_a_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {"type": {"type": "STRING", "enum": ["A"]}, "at": {"type": "ARRAY", "items": {"type": "NUMBER"}}},
    }
    tools = [{"functionDeclarations": [{"name": "look", "description": "Look.", "parameters": schema}]}]
    assert read(tools=tools).tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["A"]}, "at": {"type": "array", "items": {"type": "number"}}},
    }


def test_calls_that_come_back_without_ids_keep_those_that_they_had() -> None:
    earlier = PreviousResponses()
    asked = read([HELLO], tools=[DECLARED])
    calls = [ToolCall.make("look", '{"at": "a"}', "call_a"), ToolCall.make("look", '{"at": "b"}', "call_b")]
    earlier.add(asked, told("", *calls))
    sent = {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"at": at}}} for at in "ab"]}
    seen = {"role": "user", "parts": [_result("look", f"at {at}") for at in "ab"]}
    body = {"contents": [HELLO, sent, seen], "tools": [DECLARED]}
    _, answer, *results = GOOGLE.parse_request(body, earlier).messages
    assert [call["id"] for call in answer["tool_calls"]] == ["call_a", "call_b"]
    assert [(result["tool_call_id"], result["content"]) for result in results] == [
        ("call_a", "at a"),
        ("call_b", "at b"),
    ]


def _result(name: str, text: str) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": {"output": text}}}


def test_a_result_that_is_no_text_is_json() -> None:
    call = {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "look", "args": {}}}]}
    result = {"functionResponse": {"id": "c1", "name": "look", "response": {"error": "gone"}}}
    assert read([HELLO, call, {"role": "user", "parts": [result]}]).messages[-1]["content"] == '{"error":"gone"}'


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"cachedContent": "cachedContents/1"}, "cachedContent"),
        ({"generationConfig": {"responseSchema": {"type": "OBJECT"}}}, "generationConfig.responseSchema"),
        ({"generationConfig": {"responseJsonSchema": {}}}, "generationConfig.responseJsonSchema"),
        ({"tools": [{"googleSearch": {}}]}, "tools.0.googleSearch"),
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "system", "parts": []}]}, "contents.0.role"),
        ({"contents": [{"role": "user", "parts": []}]}, "contents.0.parts"),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "image/png"}}]}]}, "contents.0.parts.0"),
        ({"contents": [{"parts": [_result("look", "x")]}]}, "contents.0.parts.0.functionResponse.name"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "MAYBE"}}}, "functionCallingConfig.mode"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        read(**fields)
    assert refused.value.param == param


def test_a_tool_with_an_own_schema_is_read_from_the_sdk_as_with_a_json_schema() -> None:
    line = Line(GOOGLE, [told("hi")])
    GoogleAgent(line).ask("hello")
    assert line.asked[0].tools == [LOOK]
    assert line.headers[0]["x-goog-api-key"] == "key-1"
    assert GOOGLE.key(line.headers[0]) == "key-1"

import json
from typing import Any

import pytest

from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.inference.tokens.factory import chat_format
from tests.support.chat_models import chat_model
from tests.support.inference import CHATML, TOOL, USER, ids, inference, saying
from tests.support.scripted_sampler import ScriptedSampler, by_chance
from tests.support.token_servers import logprob_of

CHAT = "/v1/chat/completions"
CALL = '<tool_call>\n{"name": "terminal", "arguments": {"command": "mkdir hello"}}\n</tool_call>'
FORMAT = chat_format(CHATML.tokenizer, FormatSettings())


async def asked(text: str, **fields: Any) -> dict[str, Any]:
    """The only choice of an answer in which the model says this."""
    async with inference(saying(text)) as server:
        answer = await server.right(CHAT, {"model": "policy", "messages": [USER], **fields})
    [choice] = answer["choices"]
    found: dict[str, Any] = choice
    return found


async def test_an_answer_has_all_fields_of_a_chat_completion() -> None:
    async with inference(saying("Yes.")) as server:
        answer = await server.right(CHAT, {"model": "policy", "messages": [USER]})
    assert answer["id"].startswith("chatcmpl-") and isinstance(answer["created"], int)
    assert (answer["object"], answer["model"]) == ("chat.completion", "policy")
    [choice] = answer["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Yes."},
        "finish_reason": "stop",
        "logprobs": None,
    }


async def test_an_answer_says_which_weights_drew_it() -> None:
    async with inference(saying("Yes."), version=17) as server:
        assert (await server.right(CHAT, {"messages": [USER]}))["policy_version"] == 17


async def test_usage_counts_the_prompt_once_and_every_sampled_token() -> None:
    async with inference(saying("Yes.")) as server:
        usage = (await server.right(CHAT, {"messages": [USER], "n": 3}))["usage"]
    prompt, sampled = len(FORMAT.prompt([USER], [])), 3 * len(ids("Yes."))
    assert usage == {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


async def test_a_call_is_read_from_the_tokens() -> None:
    choice = await asked(CALL, tools=[TOOL])
    [call] = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "terminal") and call["id"]
    assert json.loads(call["function"]["arguments"]) == {"command": "mkdir hello"}
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


async def test_what_is_said_beside_a_call_is_its_content() -> None:
    choice = await asked(f"I will.\n{CALL}", tools=[TOOL])
    assert choice["message"]["content"].strip() == "I will."


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "none"}])
async def test_whoever_may_call_no_tool_has_called_none(fields: dict[str, Any]) -> None:
    choice = await asked(CALL, **fields)
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


async def test_with_tool_choice_none_the_prompt_shows_no_tools() -> None:
    sampler = saying("Yes.")
    async with inference(sampler) as server:
        await server.right(CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": "none"})
    [(prompt, _)] = sampler.asked
    assert list(prompt) == FORMAT.prompt([USER], [])


async def test_a_call_that_was_cut_is_a_length_and_not_a_call() -> None:
    choice = await asked(CALL, tools=[TOOL], max_tokens=len(ids(CALL)) - 4)
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]


async def test_a_whole_call_without_its_end_is_a_length() -> None:
    choice = await asked(CALL, tools=[TOOL], max_tokens=len(ids(CALL)) - 1)
    assert choice["finish_reason"] == "length"


async def test_thinking_has_a_field_of_its_own() -> None:
    model = chat_model("qwen3")
    async with inference(saying("<think>\nHm.\n</think>\n\nYes.", model=model), model=model) as server:
        [choice] = (await server.right(CHAT, {"messages": [USER]}))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_a_completion_of_full_length_says_so(field: str) -> None:
    assert (await asked("one two three", **{field: 2}))["finish_reason"] == "length"


async def test_a_full_context_is_a_length() -> None:
    room = 5
    async with inference(saying("word " * 40), context_tokens=len(FORMAT.prompt([USER], [])) + room) as server:
        answer = await server.right(CHAT, {"messages": [USER], "max_tokens": 100})
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == room


async def test_without_max_tokens_there_may_be_as_many_as_fit() -> None:
    sampler = saying("Yes.")
    async with inference(sampler, context_tokens=300) as server:
        await server.right(CHAT, {"messages": [USER]})
    [(prompt, request)] = sampler.asked
    assert request.max_tokens == 300 - len(prompt)


@pytest.mark.parametrize("stop", [None, [], "x", ["x", "y"]])
async def test_no_stop_of_the_callers_takes_the_place_of_the_end_of_turn(stop: Any) -> None:
    sampler = saying("Yes.")
    async with inference(sampler) as server:
        await server.right(CHAT, {"messages": [USER], "stop": stop})
    [(_, request)] = sampler.asked
    assert set(CHATML.stop_ids) <= set(request.stop_token_ids)


async def test_a_stop_string_ends_text_and_tokens() -> None:
    choice = await asked("one STOP two", stop="STOP", return_token_ids=True)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one ", "stop")
    assert tuple(choice["token_ids"]) == ids("one STOP", stop=False)


async def test_a_stop_token_of_the_callers_is_no_part_of_the_content() -> None:
    [colon] = ids(":", stop=False)
    choice = await asked("one: two", stop_token_ids=[colon])
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "stop")


async def test_logprobs_come_in_openais_form() -> None:
    choice = await asked("Yé.", logprobs=True, return_token_ids=True)
    content = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [logprob_of(token) for token in choice["token_ids"]]
    assert all(set(entry) == {"token", "bytes", "logprob", "top_logprobs"} for entry in content)
    whole = [entry for entry in content if entry["bytes"] is not None]
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in whole)


async def test_half_a_character_has_no_bytes() -> None:
    content = (await asked("é", logprobs=True))["logprobs"]["content"]
    assert [entry["bytes"] is None for entry in content] == [True, True, False]


async def test_token_ids_are_those_that_were_sent_and_sampled() -> None:
    async with inference(saying("Yes.")) as server:
        answer = await server.right(CHAT, {"messages": [USER], "return_token_ids": True})
    assert answer["prompt_token_ids"] == FORMAT.prompt([USER], [])
    assert tuple(answer["choices"][0]["token_ids"]) == ids("Yes.")


async def test_template_arguments_change_the_prompt() -> None:
    model = chat_model("qwen3")
    sampler = saying("Yes.", model=model)
    async with inference(sampler, model=model) as server:
        for thinks in (True, False):
            await server.right(CHAT, {"messages": [USER], "chat_template_kwargs": {"enable_thinking": thinks}})
    [(first, _), (second, _)] = sampler.asked
    assert first != second


async def test_a_seed_draws_the_same_again() -> None:
    async with inference(ScriptedSampler(by_chance(900))) as server:
        body = {"messages": [USER], "seed": 5, "n": 2, "return_token_ids": True}
        answers = [(await server.right(CHAT, body))["choices"] for _ in range(2)]
    assert answers[0] == answers[1]


async def test_half_a_surrogate_pair_in_a_message_is_no_failure() -> None:
    async with inference(saying("Yes.")) as server:
        data = json.dumps({"messages": [{"role": "user", "content": "a\ud83d"}]})
        status, _ = await server(CHAT, data=data, headers={"Content-Type": "application/json"})
    assert status == 200


def events(raw: bytes) -> list[Any]:
    *lines, done, end = raw.decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def streamed(text: str, **fields: Any) -> list[Any]:
    async with inference(saying(text)) as server:
        return events(await server.right(CHAT, {"messages": [USER], "stream": True, **fields}))


async def test_a_stream_is_a_chunk_for_each_choice_then_done() -> None:
    chunks = await streamed("Yes.", n=2)
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1]
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk" and chunk["policy_version"] == 3
        assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": "Yes."}
        assert chunk["choices"][0]["finish_reason"] == "stop"


async def test_calls_in_a_stream_are_numbered() -> None:
    [chunk] = await streamed(f"{CALL}\n{CALL}", tools=[TOOL])
    assert [call["index"] for call in chunk["choices"][0]["delta"]["tool_calls"]] == [0, 1]


async def test_a_stream_ends_with_its_usage_where_that_is_asked_for() -> None:
    *_, last = await streamed("Yes.", stream_options={"include_usage": True})
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == len(ids("Yes."))

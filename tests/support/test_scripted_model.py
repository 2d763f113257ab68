"""The scripted model speaks the protocol right when told to, and breaks it exactly as told."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.scripted_model import (
    Calls,
    Delayed,
    EmptyChoices,
    Garbage,
    Hang,
    RawMessage,
    Reset,
    ScriptedModel,
    Status,
    Text,
    Truncated,
    always,
    calls_then_text,
    delayed,
    in_order,
)

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "one two three"}]}


async def post(session: aiohttp.ClientSession, model: ScriptedModel, body: Any = ASK) -> dict[str, Any]:
    async with session.post(f"{model.base_url}/chat/completions", json=body) as response:
        response.raise_for_status()
        answer: dict[str, Any] = await response.json()
        return answer


async def test_a_text_answer_has_usage_and_a_finish_reason() -> None:
    async with ScriptedModel(always(Text("four five"))) as model, aiohttp.ClientSession() as session:
        answer = await post(session, model)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "four five"}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert model.requests == 1
    assert list(model.bodies) == [ASK]


async def test_tool_calls_keep_their_arguments_as_written_and_differ_in_id() -> None:
    reply = Calls([("terminal", "{not json"), ("terminal", "{}")])
    async with ScriptedModel(always(reply)) as model, aiohttp.ClientSession() as session:
        choice = (await post(session, model))["choices"][0]
    calls = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["arguments"] for call in calls] == ["{not json", "{}"]
    assert calls[0]["id"] != calls[1]["id"]


async def test_a_raw_message_is_sent_as_it_is() -> None:
    message = {"role": "assistant", "content": None, "reasoning_content": "hm"}
    async with ScriptedModel(always(RawMessage(message, "length"))) as model, aiohttp.ClientSession() as session:
        choice = (await post(session, model))["choices"][0]
    assert (choice["message"], choice["finish_reason"]) == (message, "length")


async def test_calls_then_text_follows_the_conversation_and_not_the_order_of_requests() -> None:
    fresh = {"messages": [{"role": "user", "content": "go"}]}
    later = {
        "messages": [*fresh["messages"], {"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "x"}]
    }
    async with ScriptedModel(calls_then_text("terminal", "{}")) as model, aiohttp.ClientSession() as session:
        reasons = [(await post(session, model, body))["choices"][0]["finish_reason"] for body in (later, fresh, later)]
    assert reasons == ["stop", "tool_calls", "stop"]


async def test_a_status_carries_its_body_and_retry_after() -> None:
    script = always(Status(429, {"error": {"message": "slow down"}}, retry_after=1.5))
    async with (
        ScriptedModel(script) as model,
        aiohttp.ClientSession() as session,
        session.post(f"{model.base_url}/chat/completions", json=ASK) as response,
    ):
        assert response.status == 429
        assert response.headers["Retry-After"] == "1.5"
        assert (await response.json())["error"]["message"] == "slow down"


async def test_a_body_that_is_no_json_is_refused() -> None:
    async with (
        ScriptedModel(always(Text("x"))) as model,
        aiohttp.ClientSession() as session,
        session.post(f"{model.base_url}/chat/completions", data=b"{") as response,
    ):
        assert response.status == 400


async def test_a_truncated_answer_breaks_off_inside_the_body() -> None:
    async with (
        ScriptedModel(always(Truncated())) as model,
        aiohttp.ClientSession() as session,
        session.post(f"{model.base_url}/chat/completions", json=ASK) as response,
    ):
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_garbage_is_no_json_and_empty_choices_are_empty() -> None:
    script = in_order(Garbage(), then=EmptyChoices())
    async with ScriptedModel(script) as model, aiohttp.ClientSession() as session:
        async with session.post(f"{model.base_url}/chat/completions", json=ASK) as response:
            with pytest.raises(ValueError, match=r".+"):
                json.loads(await response.read())
        assert (await post(session, model))["choices"] == []


async def test_a_reset_is_a_reset() -> None:
    async with ScriptedModel(always(Reset())) as model:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(model.base_url.split(":")[2].split("/")[0]))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_a_hang_lasts_until_the_server_closes() -> None:
    async with aiohttp.ClientSession() as session:
        async with ScriptedModel(always(Hang())) as model:
            asking = asyncio.create_task(post(session, model))
            done, _ = await asyncio.wait([asking], timeout=0.3)
            assert not done
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(asking, 5)


async def test_closing_does_not_wait_for_a_delay() -> None:
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession() as session:
        async with ScriptedModel(always(Delayed(60, Text("late")))) as model:
            asking = asyncio.create_task(post(session, model))
            await asyncio.sleep(0.1)
            begun = loop.time()
        await asyncio.wait([asking], timeout=5)
        assert asking.done()
        assert loop.time() - begun < 5
        asking.exception()


async def test_five_hundred_and_twelve_requests_wait_side_by_side() -> None:
    connector = aiohttp.TCPConnector(limit=0)
    script = delayed(0.5, always(Text("ok")))
    async with ScriptedModel(script, keep_bodies=10) as model, aiohttp.ClientSession(connector=connector) as session:
        answers = await asyncio.gather(*(post(session, model) for _ in range(512)))
    assert len(answers) == model.requests == 512
    assert model.peak > 256
    assert len(model.bodies) == 10


async def test_it_runs_as_a_process_of_its_own_and_says_where() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.scripted_model", "--port", "0", "--delay", "0.01"),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        url = line.split()[1]
        async with aiohttp.ClientSession() as session:
            async with session.get(url.removesuffix("/v1") + "/health") as response:
                assert response.status == 200
            async with session.get(f"{url}/models") as response:
                assert (await response.json())["data"][0]["id"] == "scripted"
            async with session.post(f"{url}/chat/completions", json=ASK) as response:
                assert (await response.json())["choices"][0]["finish_reason"] == "tool_calls"
    finally:
        process.terminate()
        code = await asyncio.wait_for(process.wait(), 10)
    assert code == 0

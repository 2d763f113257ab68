import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from hermes_rl.core.errors import ConfigError, EndpointError
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Usage
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.reasoning import Reasoning
from hermes_rl.inference.server_manager import RetryPolicy, ServerManager
from tests.support.ports import free_port
from tests.support.scripted_model import (
    Calls,
    Delayed,
    EmptyChoices,
    Garbage,
    Hang,
    RawMessage,
    Reply,
    Reset,
    Script,
    ScriptedModel,
    Status,
    Text,
    Truncated,
    always,
    delayed,
    in_order,
)

ASK: list[Message] = [{"role": "user", "content": "one two three"}]
QUICK = RetryPolicy(first_wait=0.01, max_wait=0.02)
SECRET = "sk-very-secret"
FAULTS: dict[str, Reply] = {
    "http_500": Status(500, "out of memory"),
    "http_429": Status(429, "slow down"),
    "http_503": Status(503, "loading"),
    "connection": Reset(),
    "bad_response": Garbage(b"<html>not json"),
    "empty_choices": EmptyChoices(),
}
each_fault = pytest.mark.parametrize(("cause", "fault"), [*FAULTS.items(), ("bad_response", Truncated())])


class ListeningModel(ScriptedModel):
    """Also keeps each request's headers and the connection that it came on."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.headers: list[dict[str, str]] = []
        self.connections: list[tuple[str, int]] = []

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        self.headers.append(dict(request.headers))
        self.connections.append(request.transport.get_extra_info("peername"))
        return await super()._handle(request)


def config(model: ScriptedModel, **fields: Any) -> APIServerConfig:
    return APIServerConfig(base_url=model.base_url, model_name=model.model_name, **fields)


@asynccontextmanager
async def served(script: Script, **fields: Any) -> AsyncIterator[tuple[ServerManager, ListeningModel]]:
    async with ListeningModel(script) as model, ServerManager([config(model, **fields)], retries=QUICK) as server:
        yield server, model


@asynccontextmanager
async def served_by_two(
    one: Script, other: Script
) -> AsyncIterator[tuple[ServerManager, ScriptedModel, ScriptedModel]]:
    async with (
        ScriptedModel(one) as first,
        ScriptedModel(other) as second,
        ServerManager([config(first), config(second)], retries=QUICK) as server,
    ):
        yield server, first, second


async def error_of(script: Script, **fields: Any) -> EndpointError:
    async with served(script, **fields) as (server, _):
        with pytest.raises(EndpointError) as caught:
            await server.chat_completion(ASK)
    return caught.value


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


# A good answer.


async def test_a_good_answer_arrives_with_its_usage() -> None:
    async with served(always(Text("four five"))) as (server, _):
        completion = await server.chat_completion(ASK)
    assert completion.choices[0].message.content == "four five"
    assert completion.usage == Usage(3, 2)


async def test_tool_calls_arrive_as_the_model_wrote_them() -> None:
    async with served(always(Calls([("terminal", "{not json")]))) as (server, _):
        choice = (await server.chat_completion(ASK)).choices[0]
    assert (choice.message.tool_calls[0].arguments, choice.finish_reason) == ("{not json", "tool_calls")


async def test_half_a_surrogate_pair_in_an_answer_does_not_lose_it() -> None:
    async with served(always(RawMessage({"role": "assistant", "content": "a\ud83d"}))) as (server, _):
        assert (await server.chat_completion(ASK)).choices[0].message.content == "a\ufffd"


async def test_the_request_carries_the_model_the_messages_and_every_parameter() -> None:
    async with served(always(Text("x"))) as (server, model):
        await server.chat_completion(ASK, temperature=0.5, max_tokens=None, extra_body={"top_k": 5})
    assert model.bodies[0] == {"model": "scripted", "messages": ASK, "n": 1, "temperature": 0.5, "top_k": 5}


async def test_half_a_surrogate_pair_in_a_message_can_be_sent() -> None:
    async with served(always(Text("x"))) as (server, model):
        await server.chat_completion([{"role": "user", "content": "a\ud83d"}])
    assert model.bodies[0]["messages"][0]["content"] == "a\ufffd"


async def test_connections_are_kept_and_used_again() -> None:
    async with served(always(Text("x"))) as (server, model):
        for _ in range(5):
            await server.chat_completion(ASK)
    assert (model.requests, len(set(model.connections))) == (5, 1)


# Trying again.


@each_fault
async def test_a_fault_that_passes_is_not_seen(cause: str, fault: Reply) -> None:
    async with served(in_order(fault, fault, then=Text("at last"))) as (server, model):
        assert (await server.chat_completion(ASK)).choices[0].message.content == "at last"
        assert model.requests == 3


@each_fault
async def test_a_fault_that_stays_is_raised_with_its_cause_and_the_endpoint(cause: str, fault: Reply) -> None:
    async with served(always(fault), max_retries=2) as (server, model):
        with pytest.raises(EndpointError, match=r"after 3 tries") as caught:
            await server.chat_completion(ASK)
        assert caught.value.cause == cause
        assert model.base_url in str(caught.value)
        assert model.requests == 3


async def test_max_retries_of_zero_asks_once() -> None:
    async with served(always(Status(500)), max_retries=0) as (server, model):
        with pytest.raises(EndpointError):
            await server.chat_completion(ASK)
        assert model.requests == 1


async def test_an_endpoint_that_nobody_listens_on_is_a_connection_failure_that_names_it() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    async with ServerManager([APIServerConfig(base_url=url, max_retries=1)], retries=QUICK) as server:
        with pytest.raises(EndpointError, match=url) as caught:
            await server.chat_completion(ASK)
    assert caught.value.cause == "connection"


async def test_a_server_that_speaks_no_http_is_a_bad_response() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as babbler:
        url = f"http://127.0.0.1:{babbler.sockets[0].getsockname()[1]}/v1"
        async with ServerManager([APIServerConfig(base_url=url, max_retries=1)], retries=QUICK) as server:
            with pytest.raises(EndpointError, match=url) as caught:
                await server.chat_completion(ASK)
    assert caught.value.cause == "bad_response"


async def test_the_error_of_a_status_names_the_model_the_status_and_the_body() -> None:
    error = await error_of(always(Status(500, "CUDA out of memory")), max_retries=0)
    assert "(model scripted) answered HTTP 500: CUDA out of memory" in str(error)


async def test_a_long_body_is_cut_in_the_error() -> None:
    error = await error_of(always(Status(500, "x" * 100_000)), max_retries=0)
    assert len(str(error)) < 1000


async def test_an_empty_body_is_said_to_be_empty() -> None:
    assert "(empty body)" in str(await error_of(always(Status(500, "")), max_retries=0))


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_refusal_is_not_tried_again(status: int) -> None:
    async with served(always(Status(status, "context too long"))) as (server, model):
        with pytest.raises(EndpointError, match="context too long") as caught:
            await server.chat_completion(ASK)
        assert (caught.value.cause, model.requests) == (f"http_{status}", 1)


async def test_retry_after_is_waited_for() -> None:
    async with served(in_order(Status(429, retry_after=0.3), then=Text("x"))) as (server, _):
        began = time.monotonic()
        await server.chat_completion(ASK)
        assert time.monotonic() - began >= 0.3


async def test_a_retry_after_beyond_the_deadline_is_not_waited_for() -> None:
    began = time.monotonic()
    error = await error_of(always(Status(429, "slow down", retry_after=3600)), timeout=60)
    assert (error.cause, time.monotonic() - began < 20) == ("http_429", True)


def test_waits_double_up_to_the_longest() -> None:
    policy = RetryPolicy(first_wait=1.0, max_wait=10.0)
    longest = [max(policy.wait_before(attempt, None) for _ in range(200)) for attempt in range(6)]
    assert all(limit / 2 < wait <= limit for wait, limit in zip(longest, [1, 2, 4, 8, 10, 10], strict=True))


def test_a_wait_never_overflows() -> None:
    assert RetryPolicy().wait_before(100_000, None) <= 30.0


# Deadlines and cancellation.


async def test_a_hang_ends_at_the_deadline_as_a_timeout() -> None:
    began = time.monotonic()
    error = await error_of(always(Hang()), timeout=0.3)
    assert error.cause == "timeout"
    assert re.search(r"did not answer /chat/completions within 0\.\d+ s", str(error))
    assert 0.3 <= time.monotonic() - began < 10


async def test_the_deadline_bounds_all_tries_together() -> None:
    script = in_order(Status(500), Status(500), then=Hang())
    began = time.monotonic()
    error = await error_of(script, timeout=0.5, max_retries=100)
    assert (error.cause, time.monotonic() - began < 10) == ("timeout", True)


async def test_the_deadline_bounds_the_wait_for_a_place_too() -> None:
    began = time.monotonic()
    async with served(always(Hang()), timeout=0.3, num_max_requests_at_once=1) as (server, _):
        errors = await asyncio.gather(*(server.chat_completion(ASK) for _ in range(30)), return_exceptions=True)
    assert [getattr(error, "cause", None) for error in errors] == ["timeout"] * 30
    assert time.monotonic() - began < 0.3 * 20


async def test_a_cancelled_request_is_no_longer_in_flight() -> None:
    async with served(always(Hang())) as (server, model):
        asking = asyncio.create_task(server.chat_completion(ASK))
        await until(lambda: model.requests == 1)
        assert server.servers[0].in_flight == 1
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        assert asking.cancelled()
        assert server.servers[0].in_flight == 0


async def test_a_cancelled_request_gives_its_place_back() -> None:
    script = in_order(Hang(), then=Text("x"))
    async with served(script, num_max_requests_at_once=1) as (server, model):
        asking = asyncio.create_task(server.chat_completion(ASK))
        await until(lambda: model.requests == 1)
        asking.cancel()
        async with asyncio.timeout(20):
            assert (await server.chat_completion(ASK)).choices


@each_fault
async def test_a_failed_request_is_no_longer_in_flight(cause: str, fault: Reply) -> None:
    async with served(always(fault), max_retries=0) as (server, _):
        with pytest.raises(EndpointError):
            await server.chat_completion(ASK)
        assert server.servers[0].in_flight == 0


# Bounds, and the choice between endpoints.


async def test_requests_in_flight_are_bounded() -> None:
    async with served(delayed(0.05, always(Text("x"))), num_max_requests_at_once=3) as (server, model):
        await asyncio.gather(*(server.chat_completion(ASK) for _ in range(12)))
        assert (model.requests, model.peak) == (12, 3)


async def test_evaluation_has_a_bound_of_its_own() -> None:
    async with served(delayed(0.05, always(Text("x"))), num_requests_for_eval=2) as (server, model):
        await asyncio.gather(*(server.chat_completion(ASK, split="eval") for _ in range(8)))
        assert (model.requests, model.peak) == (8, 2)


async def test_the_least_loaded_endpoint_gets_the_request() -> None:
    script = delayed(0.2, always(Text("x")))
    async with served_by_two(script, script) as (server, first, second):
        await asyncio.gather(*(server.chat_completion(ASK) for _ in range(10)))
        assert (first.requests, second.requests) == (5, 5)


async def test_a_failing_endpoint_is_replaced_by_another() -> None:
    async with served_by_two(always(Status(500)), always(Text("x"))) as (server, first, second):
        assert (await server.chat_completion(ASK)).choices
        assert (first.requests, second.requests) == (1, 1)


async def test_a_failing_endpoint_is_avoided_while_it_rests() -> None:
    async with served_by_two(always(Status(500)), always(Text("x"))) as (server, first, second):
        for _ in range(10):
            await server.chat_completion(ASK)
        assert (first.requests, second.requests) == (1, 10)


async def test_an_endpoint_that_asks_for_a_long_wait_does_not_hold_up_a_request_that_another_can_take() -> None:
    async with served_by_two(always(Status(429, retry_after=600)), always(Text("x"))) as (server, _, _):
        async with asyncio.timeout(20):
            assert (await server.chat_completion(ASK)).choices


async def test_when_every_endpoint_fails_all_were_asked() -> None:
    async with served_by_two(always(Status(500)), always(Status(503))) as (server, first, second):
        with pytest.raises(EndpointError, match="after 4 tries"):
            await server.chat_completion(ASK)
        assert (first.requests, second.requests) == (2, 2)


@pytest.mark.parametrize("configs", [[], [APIServerConfig()]])
def test_no_endpoint_is_a_config_error_that_says_what_to_pass(configs: list[APIServerConfig]) -> None:
    with pytest.raises(ConfigError, match=r"--openai\.base_url"):
        ServerManager(configs)


# Keys.


async def test_the_key_is_sent_to_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", SECRET)
    async with served(always(Text("x")), api_key="env:MODEL_KEY") as (server, model):
        await server.chat_completion(ASK)
    assert model.headers[0]["Authorization"] == f"Bearer {SECRET}"


async def test_without_a_key_no_authorization_is_sent() -> None:
    async with served(always(Text("x"))) as (server, model):
        await server.chat_completion(ASK)
    assert "Authorization" not in model.headers[0]


@pytest.mark.parametrize(
    "echo",
    [
        Status(401, {"error": {"message": f"Incorrect API key provided: {SECRET}"}}),
        Garbage(f"key {SECRET} what".encode()),
        Garbage(f'{{"choices": [], "key": "{SECRET}"}}'.encode()),
    ],
)
async def test_an_endpoint_that_repeats_the_key_does_not_bring_it_into_an_error(echo: Reply) -> None:
    async with served(always(echo), api_key=SECRET, max_retries=0) as (server, _):
        with pytest.raises(EndpointError) as caught:
            await server.chat_completion(ASK)
    assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.failure!r}"


async def test_a_missing_key_is_the_same_config_error_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL_KEY", raising=False)
    async with served(always(Text("x")), api_key="env:MODEL_KEY") as (server, _):
        for _ in range(2):
            with pytest.raises(ConfigError, match="MODEL_KEY"):
                await server.chat_completion(ASK)


# Being there.


async def test_a_server_that_is_up_is_ready() -> None:
    async with served(always(Text("x"))) as (server, _):
        await server.wait_until_ready(10)


async def test_a_server_that_comes_up_while_waiting_is_ready() -> None:
    port = free_port()
    config = APIServerConfig(base_url=f"http://127.0.0.1:{port}/v1", model_name="scripted")
    async with ServerManager([config]) as server:
        waiting = asyncio.create_task(server.wait_until_ready(30))
        await asyncio.sleep(0.1)
        async with ScriptedModel(always(Text("x")), port=port):
            await waiting


async def test_a_server_that_stays_down_is_said_not_to_be_ready_in_time() -> None:
    config = APIServerConfig(base_url=f"http://127.0.0.1:{free_port()}/v1")
    began = time.monotonic()
    async with ServerManager([config]) as server:
        with pytest.raises(EndpointError, match=r"Start the model server, or check --openai\.base_url") as caught:
            await server.wait_until_ready(0.7)
    assert caught.value.cause == "not_ready"
    assert time.monotonic() - began < 10


async def test_a_wrong_path_is_told_at_once() -> None:
    async with ScriptedModel(always(Text("x"))) as model:
        config = APIServerConfig(base_url=model.base_url.removesuffix("/v1"))
        async with ServerManager([config]) as server:
            async with asyncio.timeout(30):
                with pytest.raises(EndpointError, match="answered HTTP 404"):
                    await server.wait_until_ready(3600)


async def test_one_server_that_is_wrong_ends_the_wait_for_the_others() -> None:
    async with ScriptedModel(always(Text("x"))) as model:
        wrong = APIServerConfig(base_url=model.base_url.removesuffix("/v1"))
        down = APIServerConfig(base_url=f"http://127.0.0.1:{free_port()}/v1")
        async with ServerManager([down, wrong]) as server, asyncio.timeout(30):
            with pytest.raises(EndpointError, match="HTTP 404"):
                await server.wait_until_ready(3600)


async def test_a_server_whose_health_check_is_off_is_not_asked() -> None:
    config = APIServerConfig(base_url=f"http://127.0.0.1:{free_port()}/v1", health_check=False)
    async with ServerManager([config]) as server:
        await server.wait_until_ready(0.1)


# Closing.


async def test_closing_twice_is_harmless() -> None:
    async with served(always(Text("x"))) as (server, _):
        await server.chat_completion(ASK)
        await server.close()


async def test_a_manager_that_was_never_used_has_nothing_to_close() -> None:
    async with ServerManager([APIServerConfig(base_url="http://127.0.0.1:1/v1")]):
        pass


async def test_cancelling_a_request_closes_its_connection() -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()
        left.set()
        writer.close()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as hanging, asyncio.timeout(20):
        url = f"http://127.0.0.1:{hanging.sockets[0].getsockname()[1]}/v1"
        async with ServerManager([APIServerConfig(base_url=url)]) as server:
            asking = asyncio.create_task(server.chat_completion(ASK))
            await arrived.wait()
            asking.cancel()
            await left.wait()


async def test_a_conversation_of_megabytes_goes_out_whole() -> None:
    large: list[Message] = [{"role": "user", "content": "x" * 3_000_000}]
    async with (
        ScriptedModel(always(Text("read"))) as model,
        ServerManager([APIServerConfig(base_url=model.base_url, model_name="scripted")]) as server,
    ):
        await server.chat_completion(large)
    assert model.bodies[0]["messages"] == large


# Reasoning.


OPENAI, OPENROUTER = "https://api.openai.com/v1", "https://openrouter.ai/api/v1"


@pytest.mark.parametrize(
    ("reasoning", "sent"),
    [
        (Reasoning(), {"enabled": True}),
        (Reasoning(effort="high"), {"enabled": True, "effort": "high"}),
        (Reasoning(max_tokens=2000), {"enabled": True, "max_tokens": 2000}),
        (Reasoning(effort="low", max_tokens=2000), {"enabled": True, "effort": "low"}),
    ],
)
async def test_chat_requests_ask_for_reasoning(reasoning: Reasoning, sent: dict[str, Any]) -> None:
    async with (
        ScriptedModel(always(Text("x"))) as model,
        ServerManager([config(model)], reasoning=reasoning) as server,
    ):
        await server.chat_completion(ASK, max_tokens=5)
        await server.chat_completion(ASK, max_tokens=5, skip_reasoning=True)
    plain = {"model": "scripted", "messages": ASK, "n": 1, "max_tokens": 5}
    assert list(model.bodies) == [{**plain, "reasoning": sent}, plain]


async def test_extra_body_takes_precedence_over_the_fields_for_reasoning() -> None:
    async with (
        ScriptedModel(always(Text("x"))) as model,
        ServerManager([config(model)], reasoning=Reasoning("high")) as server,
    ):
        await server.chat_completion(ASK, extra_body={"reasoning": {"exclude": True}})
    assert model.bodies[0]["reasoning"] == {"exclude": True}


def test_openai_gets_its_own_fields() -> None:
    body = {"model": "o5", "max_tokens": 7, "temperature": 0.0}
    assert Reasoning("low").apply(body, OPENAI) == {
        "model": "o5",
        "reasoning_effort": "low",
        "max_completion_tokens": 7,
        "temperature": 1.0,
    }
    assert Reasoning("low").apply(body, OPENROUTER)["max_tokens"] == 7


def test_a_limit_of_reasoning_tokens_is_refused_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="set reasoning_effort instead"):
        ServerManager([APIServerConfig(base_url=OPENAI)], reasoning=Reasoning(max_tokens=2000))
    ServerManager([APIServerConfig(base_url=OPENROUTER)], reasoning=Reasoning(max_tokens=2000))


# Several completions from an endpoint that returns one.


async def test_an_endpoint_that_ignores_n_is_asked_once_for_each_completion() -> None:
    async with served(in_order(Text("a b"), Text("c"), then=Status(500)), n_kwarg_is_ignored=True) as (server, model):
        completion = await server.chat_completion(ASK, n=2, seed=2**31 - 1)
    assert sorted((body["n"], body["seed"]) for body in model.bodies) == [(1, 0), (1, 2**31 - 1)]
    assert sorted(str(choice.message.content) for choice in completion.choices) == ["a b", "c"]
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert completion.usage == Usage(6, 3)


# Latency.


async def test_latency_figures_cover_the_latest_requests() -> None:
    script = in_order(Delayed(0.3, Text("slow")), Text("x"), Text("x"), then=Delayed(0.3, Text("slow")))
    async with served(script, rolling_buffer_length=2) as (server, _):
        assert server.latency_metrics() == {}
        await server.chat_completion(ASK)
        first = server.latency_metrics()
        assert set(first) == {f"server/server_0_request_time_{name}" for name in ("avg", "std", "99p")}
        assert first["server/server_0_request_time_99p"] >= 0.3
        for _ in range(2):
            await server.chat_completion(ASK)
        assert server.latency_metrics()["server/server_0_request_time_99p"] < 0.3
        await server.chat_completion(ASK, split="eval")
        metrics = server.latency_metrics()
    assert metrics["server/server_0_eval_request_time_avg"] >= 0.3
    assert metrics["server/server_0_request_time_99p"] < 0.3

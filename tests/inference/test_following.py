"""Requests that follow their engines, over real sockets: refusals are waited out, conversations stay where they are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hermes_rl.core.errors import EndpointError
from hermes_rl.core.messages import Message
from hermes_rl.inference.concurrency_limiter import LimiterConfig
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import RetryPolicy, ServerManager
from tests.support.scripted_model import (
    Delayed,
    Hang,
    Reply,
    Reset,
    Script,
    ScriptedModel,
    Status,
    Text,
    always,
    delayed,
)

ASK: list[Message] = [{"role": "user", "content": "one two three"}]
QUICK = RetryPolicy(first_wait=0.01, max_wait=0.02, rest=0.05)


@asynccontextmanager
async def following(
    *models: ScriptedModel, limiter_config: LimiterConfig | None = None, timeout: float = 20.0, max_retries: int = 0
) -> AsyncIterator[ServerManager]:
    configs = [
        APIServerConfig(base_url=model.base_url, model_name="scripted", timeout=timeout, max_retries=max_retries)
        for model in models
    ]
    async with ServerManager(configs, retries=QUICK, limiter_config=limiter_config or LimiterConfig()) as server:
        yield server


async def test_a_request_that_is_refused_waits_and_is_no_failure() -> None:
    said = iter([Status(429)] * 5)
    async with (
        ScriptedModel(lambda _: next(said, Text("at last"))) as model,
        following(model) as server,
    ):
        assert (await server.chat_completion(ASK)).choices[0].message.content == "at last"
    assert model.requests == 6


async def test_one_that_is_refused_for_ever_ends_with_its_time() -> None:
    async with ScriptedModel(always(Status(429))) as model, following(model, timeout=0.3) as server:
        with pytest.raises(EndpointError) as raised:
            await server.chat_completion(ASK)
    assert raised.value.cause in {"http_429", "timeout"}


async def test_one_that_is_told_to_come_later_waits_too() -> None:
    said = iter([Status(503, retry_after=0.01)] * 5)
    async with ScriptedModel(lambda _: next(said, Text("at last"))) as model, following(model) as server:
        assert (await server.chat_completion(ASK)).choices[0].message.content == "at last"


async def test_an_engine_that_refuses_all_is_asked_little() -> None:
    async with (
        ScriptedModel(always(Status(429))) as refusing,
        ScriptedModel(delayed(0.005, always(Text("yes")))) as well,
        following(refusing, well) as server,
    ):
        for _ in range(30):
            await asyncio.gather(*(server.chat_completion(ASK) for _ in range(10)))
    assert refusing.requests <= 150


async def test_other_faults_are_tried_as_often_as_configured() -> None:
    async with ScriptedModel(always(Status(500))) as model, following(model, max_retries=1) as server:
        with pytest.raises(EndpointError):
            await server.chat_completion(ASK)
    assert model.requests == 2


async def test_no_more_requests_are_open_than_the_limit() -> None:
    async with (
        ScriptedModel(delayed(0.02, always(Text("yes")))) as model,
        following(model, limiter_config=LimiterConfig(initial=3)) as server,
    ):
        await asyncio.gather(*(server.chat_completion(ASK) for _ in range(12)))
    assert model.peak <= 3


async def test_an_engine_with_a_bound_of_its_own_refuses_few() -> None:
    model = ScriptedModel(always(Text("never")))
    model.script = bounded(model, 4, Delayed(0.01, Text("yes")))
    async with model, following(model) as server:
        answers = await asyncio.gather(*(server.chat_completion(ASK) for _ in range(200)))
        refusals = server.endpoints.figures()["refusals"]
    assert len(answers) == 200
    assert refusals <= 40


async def test_the_calls_of_a_session_go_to_one_endpoint() -> None:
    async with (
        ScriptedModel(always(Text("a"))) as one,
        ScriptedModel(always(Text("b"))) as other,
        following(one, other) as server,
    ):
        for _ in range(6):
            session = server.session()
            said = {(await session.chat_completion(ASK)).choices[0].message.content for _ in range(5)}
            assert len(said) == 1
        assert server.endpoints.moves == 0


async def test_sessions_of_servers_that_nobody_measures_stay_too() -> None:
    async with ScriptedModel(always(Text("a"))) as one, ScriptedModel(always(Text("b"))) as other:
        configs = [APIServerConfig(base_url=model.base_url) for model in (one, other)]
        async with ServerManager(configs) as server:
            session = server.session()
            await session.chat_completion(ASK)
            # Now the other one has less to do.
            assert session.endpoint is not None
            session.endpoint.in_flight += 2
            await session.chat_completion(ASK)
            session.endpoint.in_flight -= 2
    assert {one.requests, other.requests} == {0, 2}


async def test_a_session_moves_when_its_endpoint_is_gone_and_stays_at_the_new_one() -> None:
    async with (
        ScriptedModel(always(Text("a"))) as one,
        ScriptedModel(always(Text("b"))) as other,
        following(one, other, max_retries=2) as server,
    ):
        session = server.session()
        first = (await session.chat_completion(ASK)).choices[0].message.content
        left, kept = (one, other) if first == "a" else (other, one)
        left.script = always(Reset())
        said = [(await session.chat_completion(ASK)).choices[0].message.content for _ in range(3)]
        assert set(said) == {"b" if first == "a" else "a"}
        assert (server.endpoints.moves, kept.requests) == (1, 3)


async def test_an_engine_that_came_back_is_asked_again() -> None:
    async with (
        ScriptedModel(always(Reset())) as away,
        ScriptedModel(delayed(0.01, always(Text("yes")))) as well,
        following(away, well, max_retries=3) as server,
    ):
        await asyncio.gather(*(server.chat_completion(ASK) for _ in range(20)))
        away.script, failed = delayed(0.01, always(Text("back"))), away.requests
        await asyncio.sleep(2 * QUICK.rest)
        await asyncio.gather(*(server.chat_completion(ASK) for _ in range(20)))
    assert away.requests > failed


async def test_an_engine_that_is_away_is_asked_little() -> None:
    async with (
        ScriptedModel(always(Reset())) as away,
        ScriptedModel(delayed(0.005, always(Text("yes")))) as well,
        following(away, well, max_retries=3) as server,
    ):
        await asyncio.gather(*(server.chat_completion(ASK) for _ in range(300)))
    assert away.requests <= 60


async def test_an_engine_that_hangs_is_lost_when_the_time_of_its_requests_is_up() -> None:
    async with ScriptedModel(always(Hang())) as model, following(model, timeout=0.3) as server:
        await asyncio.gather(*(server.chat_completion(ASK) for _ in range(3)), return_exceptions=True)
        figures = server.endpoints.figures()
    assert (figures["losses"], figures["requests_limit"]) == (3, 1)


async def test_one_whose_time_was_up_while_it_waited_here_says_nothing_of_the_engine() -> None:
    async with (
        ScriptedModel(always(Hang())) as model,
        following(model, limiter_config=LimiterConfig(initial=1), timeout=0.3) as server,
    ):
        await asyncio.gather(*(server.chat_completion(ASK) for _ in range(3)), return_exceptions=True)
        assert server.endpoints.figures()["losses"] == 1
    assert model.requests <= 3


def bounded(model: ScriptedModel, most: int, reply: Reply) -> Script:
    """A server that refuses what would be more than `most` at once."""
    return lambda _: reply if model.open <= most else Status(429)

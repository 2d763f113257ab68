import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from hermes_rl.core.errors import ConfigError, ContextFullError, EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.training.live_policy import SamplingPolicy
from tests.support.inference import USER, inference, saying
from tests.support.scripted_sampler import ScriptedSampler

CHAT = "/v1/chat/completions"
SAID = {"messages": [USER]}


def failing(error: Exception) -> ScriptedSampler:
    def script(*_: object) -> Sequence[int]:
        raise error

    return ScriptedSampler(script)


async def told(error: Exception) -> tuple[int, Any, dict[str, str]]:
    async with inference(failing(error)) as server, server.session.post(CHAT, json=SAID) as response:
        return response.status, (await response.json())["error"], dict(response.headers)


async def test_an_engine_that_fails_is_a_503_that_says_when_to_ask_again() -> None:
    error = RetryableEndpointError("connection", "the engine is away")
    error.retry_after = 7.5
    status, said, headers = await told(error)
    assert (status, said["code"], headers["Retry-After"]) == (503, "connection", "8")


async def test_an_engine_that_refuses_is_a_503_too() -> None:
    status, said, headers = await told(EndpointError("refused", "no"))
    assert (status, said["code"], headers["Retry-After"]) == (503, "refused", "1")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ContextFullError("context_full", "maximum context length"), "context_length_exceeded"),
        (ConfigError("min_p=0.5: the engine has no such thing"), None),
        (EndpointError("unsupported", "the engine knows no min_p"), "unsupported"),
    ],
)
async def test_what_the_caller_can_mend_is_a_400(error: Exception, code: str | None) -> None:
    status, said, _ = await told(error)
    assert (status, said["code"], said["message"]) == (400, code, str(error))


async def test_what_nobody_foresaw_is_a_500_in_the_same_form() -> None:
    status, said, _ = await told(RuntimeError("oops"))
    assert (status, said["type"], said["message"]) == (500, "server_error", "RuntimeError: oops")


async def test_an_error_in_one_of_several_prompts_is_an_error_of_the_request() -> None:
    def script(ids: Sequence[int], *_: object) -> Sequence[int]:
        if ids[0] == 6:
            raise RetryableEndpointError("connection", "away")
        return [5]

    async with inference(ScriptedSampler(script)) as server:
        status, _ = await server("/v1/completions", {"prompt": [[5], [6], [7]]})
    assert status == 503


async def test_nobody_is_sampled_for_who_has_gone() -> None:
    sampler = saying("Yes.", seconds=60)
    async with inference(sampler) as server:
        asking = asyncio.create_task(server(CHAT, SAID))
        async with asyncio.timeout(30):
            while not sampler.asked:
                await asyncio.sleep(0.001)
            asking.cancel()
            while not sampler.given_up:
                await asyncio.sleep(0.001)
    assert (len(sampler.asked), sampler.ended) == (1, 0)


async def test_who_goes_away_does_not_harm_who_was_joined_with_them() -> None:
    async with inference(saying("Yes.", seconds=0.3)) as server:
        leaving = asyncio.create_task(server(CHAT, SAID, timeout=aiohttp.ClientTimeout(total=0.1)))
        status, _ = await server(CHAT, SAID)
        assert status == 200
        with pytest.raises(TimeoutError):
            await leaving


async def test_a_publish_during_a_request_leaves_its_version_as_it_was() -> None:
    sampler = saying("Yes.", seconds=0.2)
    async with inference(sampler, version=1) as server:
        asking = asyncio.create_task(server.right(CHAT, SAID))
        while not sampler.asked:
            await asyncio.sleep(0.001)
        server.policy.publish(2, saying("No."))
        before, after = await asking, await server.right(CHAT, SAID)
    said = [(answer["policy_version"], answer["choices"][0]["message"]["content"]) for answer in (before, after)]
    assert said == [(1, "Yes."), (2, "No.")]


async def test_requests_outlive_an_engine_that_its_owner_replaces() -> None:
    policy = SamplingPolicy(patience=5.0, on_failure=lambda *_: policy.withdraw())
    async with inference(failing(RetryableEndpointError("connection", "away")), policy=policy, version=1) as server:
        asking = asyncio.create_task(server.right(CHAT, SAID))
        while policy.version is not None:
            await asyncio.sleep(0.001)
        policy.publish(1, saying("Yes."))
        assert (await asking)["choices"][0]["message"]["content"] == "Yes."


async def test_requests_under_way_are_answered_when_the_server_ends() -> None:
    sampler = saying("Yes.", seconds=0.3)
    async with aiohttp.ClientSession() as session:
        async with inference(sampler) as server:
            asking = asyncio.create_task(session.post(f"{server.url}{CHAT}", json=SAID))
            while not sampler.asked:
                await asyncio.sleep(0.001)
        async with await asking as response:
            assert response.status == 200

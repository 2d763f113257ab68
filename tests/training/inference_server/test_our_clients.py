"""Our own clients against the server: what an environment records is what was sampled, on every route they know."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hermes_rl.core.errors import ContextFullError, EndpointError
from hermes_rl.inference.completion import ChatCompletion
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.inference.server_manager import RetryPolicy, ServerManager
from hermes_rl.inference.token_engines import Route, SamplingRequest
from hermes_rl.inference.token_engines.sglang import SGLANG
from hermes_rl.inference.token_engines.vllm import VLLM
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.inference.tokens.sampled import Finish
from tests.support.chat_models import chat_model
from tests.support.inference import CONTEXT, TOOL, USER, Inference, ids, inference, saying
from tests.support.scripted_sampler import ScriptedSampler, by_chance
from tests.support.token_servers import logprob_of

CALL = '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call>'


@asynccontextmanager
async def managing(server: Inference, kind: str, **config: Any) -> AsyncIterator[ServerManager]:
    endpoint = {"base_url": f"{server.url}/v1", "model_name": "policy", "server_type": kind, "timeout": 10, **config}
    retries = RetryPolicy(0.01, 0.02, 0.05)
    async with ServerManager([APIServerConfig.model_validate(endpoint)], retries=retries) as manager:
        yield manager


async def said(manager: ServerManager, messages: list[dict[str, Any]], **parameters: Any) -> ChatCompletion:
    """The answer by way of text, or of tokens where the endpoint has them."""
    if not manager.returns_tokens:
        return await manager.chat_completion(messages, **parameters)
    async with manager.managed_server(chat_model("chatml").tokenizer) as managed:
        return await managed.chat_completion(messages, **parameters)


async def turns(server: Any, count: int, **parameters: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in range(count):
        messages.append({"role": "user", "content": f"turn {turn}"})
        answer = await server.chat_completion(messages, **parameters)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    return messages


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("family", ["chatml", "qwen3", "llama3"])
async def test_a_conversation_is_recorded_token_for_token(kind: str, family: str) -> None:
    model = chat_model(family)
    sampler = ScriptedSampler(by_chance(900))
    async with (
        inference(sampler, model=model, version=6, context_tokens=2048) as server,
        managing(server, kind) as manager,
    ):
        await manager.wait_until_ready(5)
        async with manager.managed_server(model.tokenizer, settings=FormatSettings(parser=model.parser)) as managed:
            await turns(managed, 3, max_tokens=40)
            checked = managed.checked()
    assert checked.breaches == ()
    sampled = 0
    for sequence in checked.sequences:
        kept = [place for place, mask in enumerate(sequence.mask) if mask]
        sampled += len(kept)
        assert all(sequence.logprobs[place] == logprob_of(sequence.tokens[place]) for place in kept)
        assert {sequence.versions[place] for place in kept} == {6}
    assert sampled > 0


@pytest.mark.parametrize("route", [*VLLM.routes, *SGLANG.routes], ids=lambda route: type(route).__module__[-6:])
async def test_every_token_route_of_ours_is_answered_exactly(route: Route) -> None:
    request = SamplingRequest.from_parameters(
        {"n": 2, "max_tokens": 9, "stop": ["Never"], "top_p": 0.9, "seed": 4}, [7]
    )
    async with inference(saying("one", "two three four five six seven"), version=8) as server:
        path, body = route.request("policy", [5, 6], request)
        answer = route.answer(await server.right(path, body), [5, 6], request)
    first, second = answer.completions
    assert (answer.prompt, answer.prompt_length) == ((5, 6), 2)
    assert (first.tokens, first.finish) == (ids("one"), Finish.STOP)
    assert (second.tokens, second.finish) == (ids("two three four five six seven")[:9], Finish.LENGTH)
    assert second.logprobs == tuple(map(logprob_of, second.tokens))
    assert set(second.versions) <= {8, None}


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
async def test_a_call_is_the_same_by_every_route(kind: str) -> None:
    async with inference(saying(f"I look.\n{CALL}")) as server, managing(server, kind) as manager:
        answer = await said(manager, [USER], tools=[TOOL], max_tokens=60)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is not None
    assert (choice.message.content.strip(), [call.name for call in choice.message.tool_calls]) == (
        "I look.",
        ["terminal"],
    )
    assert answer.usage.completion_tokens


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
async def test_a_conversation_that_is_too_long_is_known_as_such(kind: str) -> None:
    long = [{"role": "user", "content": "word " * CONTEXT}]
    async with inference(saying("Yes.")) as server, managing(server, kind) as manager:
        with pytest.raises(ContextFullError):
            await said(manager, long)


async def test_an_engine_that_comes_back_in_time_is_not_noticed() -> None:
    calls = 0

    def script(*_: object) -> Sequence[int]:
        nonlocal calls
        calls += 1
        if calls < 3:
            error = RetryableEndpointError("connection", "away")
            error.retry_after = 0.01
            raise error
        return [5, 6]

    async with inference(ScriptedSampler(script)) as server, managing(server, "openai") as manager:
        answer = await manager.chat_completion([USER], max_tokens=2)
    assert answer.choices[0].finish_reason == "length"


async def test_an_environment_waits_until_it_can_sample() -> None:
    async with inference(None) as server, managing(server, "vllm") as manager:
        with pytest.raises(EndpointError, match="no weights"):
            await manager.servers[0].get("/models", timeout=30)
        waiting = asyncio.create_task(manager.wait_until_ready(60))
        ended, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not ended
        server.policy.publish(0, saying("Yes."))
        await waiting
        assert manager.context_tokens == CONTEXT


async def test_a_token_is_sent_as_the_key() -> None:
    async with (
        inference(saying("Yes."), token="secret") as server,
        managing(server, "openai", api_key="secret") as manager,
    ):
        answer = await manager.chat_completion([USER])
    assert answer.choices[0].message.content == "Yes."

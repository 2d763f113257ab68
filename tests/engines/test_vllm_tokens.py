"""Token ids in and out of a real vLLM, on both of its routes."""

import re
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from hermes_rl.core.errors import ContextFullError, EndpointError
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.endpoint import Endpoint
from hermes_rl.inference.token_engines import MISSING_ROUTE, Route, SamplingRequest, engine_for
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish, Sampled
from hermes_rl.inference.tokens.tokenizer import load_tokenizer
from tests.engines.conftest import VLLM_CONTEXT, TokenEndpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ENGINE = engine_for(ServerType.VLLM)
assert ENGINE is not None
GENERATE, COMPLETIONS = ENGINE.routes
each_route = pytest.mark.parametrize("route", ENGINE.routes, ids=["generate", "completions"])
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def tokenizer(vllm_server: TokenEndpoint) -> Any:
    return load_tokenizer(str(vllm_server.folder))


@pytest.fixture(scope="module")
def prompt(tokenizer: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return ids


async def post(server: TokenEndpoint, path: str, body: dict[str, Any]) -> Any:
    async with aiohttp.ClientSession() as session:
        endpoint = Endpoint(APIServerConfig(base_url=server.root, model_name=server.model_name), session)
        return await endpoint.post(path, body, split="train", timeout=120)


async def ask(server: TokenEndpoint, route: Route, ids: Sequence[int], **parameters: Any) -> EngineAnswer:
    sampling = SamplingRequest.from_parameters(parameters)
    path, body = route.request(server.model_name, ids, sampling)
    return route.answer(await post(server, path, body), ids, sampling)


async def greedy(server: TokenEndpoint, route: Route, ids: Sequence[int], **parameters: Any) -> Sampled:
    [sampled] = (await ask(server, route, ids, temperature=0, **{"max_tokens": 24, **parameters})).completions
    return sampled


async def prompt_logprobs(server: TokenEndpoint, ids: Sequence[int]) -> list[float]:
    """What the raw model gives each token but the first, read in one go."""
    parameters = {"max_tokens": 1, "prompt_logprobs": 0}
    answer = await post(server, "/inference/v1/generate", {"token_ids": ids, "sampling_params": parameters})
    return [row[str(token)]["logprob"] for row, token in zip(answer["prompt_logprobs"][1:], ids[1:], strict=True)]


async def computed_prompt_tokens(server: TokenEndpoint) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{server.root}/metrics") as response:
        metrics = await response.text()
    [computed] = re.findall(r'^vllm:prompt_tokens_by_source_total\{.*"local_compute".*\} (.+)$', metrics, re.MULTILINE)
    return float(computed)


async def test_both_routes_sample_the_same_tokens_with_the_same_logprobs(
    vllm_server: TokenEndpoint, prompt: list[int]
) -> None:
    one, other = [await greedy(vllm_server, route, prompt) for route in (GENERATE, COMPLETIONS)]
    assert one.tokens == other.tokens
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@each_route
async def test_the_prompt_is_echoed_as_it_was_sent(vllm_server: TokenEndpoint, prompt: list[int], route: Route) -> None:
    answer = await ask(vllm_server, route, prompt, max_tokens=1)
    assert (answer.prompt, answer.prompt_length) == (tuple(prompt), len(prompt))


@each_route
async def test_sampled_tokens_end_in_the_end_token(
    vllm_server: TokenEndpoint, prompt: list[int], tokenizer: Any, route: Route
) -> None:
    sampled = await greedy(vllm_server, route, prompt)
    assert (sampled.tokens[-1], sampled.finish) == (tokenizer.eos_token_id, Finish.STOP)


@each_route
async def test_sampled_tokens_end_in_another_token_that_was_to_stop_them(
    vllm_server: TokenEndpoint, prompt: list[int], route: Route
) -> None:
    whole = await greedy(vllm_server, route, prompt)
    sampled = await greedy(vllm_server, route, prompt, stop_token_ids=[whole.tokens[3]])
    assert (sampled.tokens, sampled.finish) == (whole.tokens[:4], Finish.STOP)


@each_route
async def test_a_stop_string_cuts_no_token_that_was_sampled(
    vllm_server: TokenEndpoint, prompt: list[int], tokenizer: Any, route: Route
) -> None:
    whole = await greedy(vllm_server, route, prompt)
    second = tokenizer.decode(whole.tokens[1])
    sampled = await greedy(vllm_server, route, prompt, stop=second[2:-1])
    assert (sampled.tokens, sampled.finish) == (whole.tokens[:2], Finish.STOP)


@each_route
async def test_as_many_tokens_as_asked_for_are_a_length(
    vllm_server: TokenEndpoint, prompt: list[int], route: Route
) -> None:
    sampled = await greedy(vllm_server, route, prompt, max_tokens=3)
    assert (len(sampled.tokens), sampled.finish) == (3, Finish.LENGTH)


@each_route
@pytest.mark.parametrize("asked", [24, None])
async def test_fewer_than_asked_for_are_a_full_context(
    vllm_server: TokenEndpoint, prompt: list[int], route: Route, asked: int | None
) -> None:
    long = (prompt * VLLM_CONTEXT)[: VLLM_CONTEXT - 5]
    sampled = await greedy(vllm_server, route, long, max_tokens=asked, ignore_eos=True)
    assert (len(sampled.tokens), sampled.finish) == (5, Finish.CONTEXT)


@each_route
async def test_a_prompt_longer_than_the_context_is_a_full_context(vllm_server: TokenEndpoint, route: Route) -> None:
    with pytest.raises(ContextFullError):
        await ask(vllm_server, route, [5] * (VLLM_CONTEXT + 1), max_tokens=4)


async def test_four_samples_of_one_prompt_share_its_prefill(vllm_server: TokenEndpoint) -> None:
    fresh = list(range(1000, 2000))
    before = await computed_prompt_tokens(vllm_server)
    answer = await ask(vllm_server, GENERATE, fresh, max_tokens=2, n=4)
    assert len(answer.completions) == 4
    assert await computed_prompt_tokens(vllm_server) - before < 1.5 * len(fresh)


@each_route
async def test_a_prompt_seen_before_is_told_to_be_cached(vllm_server: TokenEndpoint, route: Route) -> None:
    seen = list(range(3000, 3400))
    await ask(vllm_server, route, seen, max_tokens=1)
    again = await ask(vllm_server, route, seen, max_tokens=1)
    assert again.cached_tokens is not None and again.cached_tokens > len(seen) / 2


@each_route
async def test_a_seed_draws_the_same_tokens_again(vllm_server: TokenEndpoint, prompt: list[int], route: Route) -> None:
    one, other = [await ask(vllm_server, route, prompt, seed=11, n=3, max_tokens=8) for _ in range(2)]
    tokens = [sampled.tokens for sampled in one.completions]
    assert tokens == [sampled.tokens for sampled in other.completions]
    assert len(set(tokens)) > 1


@each_route
async def test_logprobs_are_the_raw_models_at_any_temperature(
    vllm_server: TokenEndpoint, prompt: list[int], route: Route
) -> None:
    [sampled] = (await ask(vllm_server, route, prompt, temperature=0.5, seed=3, max_tokens=16)).completions
    raw = await prompt_logprobs(vllm_server, [*prompt, *sampled.tokens])
    assert sampled.logprobs == pytest.approx(raw[-len(sampled.tokens) :], abs=1e-3)


async def test_tokens_have_the_version_of_the_weights(vllm_server: TokenEndpoint, prompt: list[int]) -> None:
    try:
        await post(vllm_server, "/update_weight_version", {"new_version": "step-7"})
        later = await greedy(vllm_server, GENERATE, prompt, max_tokens=3)
    finally:
        await post(vllm_server, "/update_weight_version", {"new_version": "default"})
    first = await greedy(vllm_server, GENERATE, prompt, max_tokens=3)
    assert (later.versions, first.versions) == ((7, 7, 7), (0, 0, 0))


async def test_a_server_not_started_for_it_has_only_the_other_route(
    vllm_without_generate: TokenEndpoint, prompt: list[int]
) -> None:
    with pytest.raises(EndpointError) as caught:
        await greedy(vllm_without_generate, GENERATE, prompt)
    assert caught.value.cause in MISSING_ROUTE
    assert (await greedy(vllm_without_generate, COMPLETIONS, prompt)).finish is Finish.STOP

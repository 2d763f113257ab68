import contextlib
from collections.abc import Callable
from typing import Any

import aiohttp
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from hermes_rl.core.errors import ContextFullError, EndpointError
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.endpoint import Endpoint, RetryableEndpointError
from hermes_rl.inference.token_engines import (
    MISSING_ROUTE,
    Route,
    SamplingRequest,
    TokenEngine,
    engine_for,
)
from hermes_rl.inference.token_engines.engine import version_number
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish
from tests.support.scripted_model import Garbage, Reset
from tests.support.token_servers import (
    Altered,
    SGLangServer,
    TokenReply,
    Tokens,
    TokenServer,
    VLLMServer,
    logprob_of,
)

PROMPT = [5, 6, 7]
STOP = 2
SAID = Tokens((11, 12, 13, STOP))


def engine(server_type: ServerType) -> TokenEngine:
    found = engine_for(server_type)
    assert found is not None
    return found


VLLM, SGLANG = engine(ServerType.VLLM), engine(ServerType.SGLANG)
GENERATE, COMPLETIONS = VLLM.routes
[SGLANG_GENERATE] = SGLANG.routes
each_route = pytest.mark.parametrize(
    ("make", "route"),
    [(VLLMServer, GENERATE), (VLLMServer, COMPLETIONS), (SGLangServer, SGLANG_GENERATE)],
    ids=["vllm-generate", "vllm-completions", "sglang"],
)
each_vllm_route = pytest.mark.parametrize("route", VLLM.routes, ids=["generate", "completions"])
Make = Callable[..., TokenServer]


def request(**parameters: Any) -> SamplingRequest:
    return SamplingRequest.from_parameters(parameters, (STOP,))


async def ask(
    server: TokenServer, route: Route, ids: list[int] | None = None, sampling: SamplingRequest | None = None
) -> EngineAnswer:
    asked, ids = sampling or request(max_tokens=16), ids or PROMPT
    path, body = route.request(server.model_name, ids, asked)
    async with aiohttp.ClientSession() as session:
        endpoint = Endpoint(APIServerConfig(base_url=server.root, model_name=server.model_name), session)
        raw = await endpoint.post(path, body, split="train", timeout=5)
    return route.answer(raw, ids, asked)


def always(reply: TokenReply) -> Callable[[Any], TokenReply]:
    return lambda _asked: reply


def without(*path: str | int) -> Callable[[Any], Any]:
    """An answer whose value at that place is null."""
    return put(None, *path)


def put(value: Any, *path: str | int) -> Callable[[Any], Any]:
    def change(body: Any) -> Any:
        inner = body
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value
        return body

    return change


def body_of(route: Route, **parameters: Any) -> dict[str, Any]:
    _, body = route.request("m", PROMPT, request(**parameters))
    found: dict[str, Any] = body.get("sampling_params", body)
    return found


@pytest.mark.parametrize("server_type", [ServerType.OPENAI, ServerType.TRL])
def test_a_server_without_exact_tokens_has_no_engine(server_type: ServerType) -> None:
    assert engine_for(server_type) is None


def test_vllms_logprobs_are_raw_and_sglangs_processed() -> None:
    assert (VLLM.logprobs, SGLANG.logprobs) == ("raw", "processed")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("default", 0),
        ("0", 0),
        ("12", 12),
        ("step-12", 12),
        ("run3/step_0007", 7),
        ("v4", 4),
        (9, 9),
        ("12.5", None),
        ("final", None),
        ("", None),
        (None, None),
    ],
)
def test_versions_are_numbered_by_what_their_name_ends_in(name: Any, number: int | None) -> None:
    assert version_number(name) == number


@given(st.integers(min_value=0, max_value=10**12))
def test_a_step_has_its_number(step: int) -> None:
    assert version_number(f"step-{step}") == version_number(str(step)) == step


@each_route
def test_every_filter_is_sent_also_when_off(make: Make, route: Route) -> None:
    sent = body_of(route)
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["min_p"]) == (1, 1, -1, 0)
    assert (sent["presence_penalty"], sent["frequency_penalty"], sent["repetition_penalty"]) == (0, 0, 1)


@each_route
def test_the_stop_tokens_are_sent(make: Make, route: Route) -> None:
    assert list(body_of(route)["stop_token_ids"]) == [STOP]


def test_vllm_is_asked_at_the_servers_root() -> None:
    assert [route.request("m", PROMPT, request())[0] for route in VLLM.routes] == [
        "/inference/v1/generate",
        "/v1/completions",
    ]


def test_no_length_on_the_generate_route_is_no_field() -> None:
    assert "max_tokens" not in body_of(GENERATE)


def test_no_length_on_the_completions_route_is_null() -> None:
    assert body_of(COMPLETIONS)["max_tokens"] is None


def test_no_length_for_sglang_is_null() -> None:
    assert body_of(SGLANG_GENERATE)["max_new_tokens"] is None


def test_vllm_decodes_only_when_it_must_look_for_a_stop_string() -> None:
    assert body_of(GENERATE)["detokenize"] is False
    assert "detokenize" not in body_of(GENERATE, stop="END")


def test_sglang_has_other_names_for_seed_and_lengths() -> None:
    sent = body_of(SGLANG_GENERATE, seed=3, max_tokens=8, min_tokens=2)
    assert (sent["sampling_seed"], sent["max_new_tokens"], sent["min_new_tokens"]) == (3, 8, 2)


def test_sglang_gets_no_seed_that_all_of_n_would_share() -> None:
    assert "sampling_seed" not in body_of(SGLANG_GENERATE, seed=3, n=2)


@each_route
async def test_tokens_come_back_with_their_logprobs(make: Make, route: Route) -> None:
    async with make(always(SAID)) as server:
        [sampled] = (await ask(server, route)).completions
    assert sampled.tokens == SAID.ids
    assert sampled.logprobs == tuple(map(logprob_of, SAID.ids))


@each_route
async def test_the_prompt_is_told_as_the_server_read_it(make: Make, route: Route) -> None:
    async with make(always(SAID)) as server:
        answer = await ask(server, route)
    assert (answer.prompt, answer.prompt_length) == (tuple(PROMPT), 3)


@each_route
async def test_n_completions_come_back(make: Make, route: Route) -> None:
    async with make(always((SAID, Tokens((21, STOP))))) as server:
        answer = await ask(server, route, sampling=request(n=2))
    assert [sampled.tokens for sampled in answer.completions] == [SAID.ids, (21, STOP)]


@each_route
async def test_a_stop_token_is_a_stop(make: Make, route: Route) -> None:
    async with make(always(SAID)) as server:
        assert (await ask(server, route)).completions[0].finish is Finish.STOP


@each_route
async def test_as_many_tokens_as_asked_for_is_a_length(make: Make, route: Route) -> None:
    async with make(always(SAID)) as server:
        [sampled] = (await ask(server, route, sampling=request(max_tokens=2))).completions
    assert (sampled.tokens, sampled.finish) == (SAID.ids[:2], Finish.LENGTH)


@each_vllm_route
async def test_fewer_tokens_than_asked_for_is_a_full_context(route: Route) -> None:
    async with VLLMServer(always(SAID), context=5) as server:
        [sampled] = (await ask(server, route)).completions
    assert (sampled.tokens, sampled.finish) == (SAID.ids[:2], Finish.CONTEXT)


@each_route
async def test_with_no_length_asked_for_a_length_is_a_full_context(make: Make, route: Route) -> None:
    async with make(always(Tokens(tuple(range(100, 200)))), context=50) as server:
        [sampled] = (await ask(server, route, sampling=request())).completions
    assert sampled.finish is Finish.CONTEXT


@each_route
async def test_a_prompt_that_does_not_fit_is_a_full_context(make: Make, route: Route) -> None:
    async with make(always(SAID), context=8) as server:
        with pytest.raises(ContextFullError):
            await ask(server, route, [5] * 9, request(max_tokens=1))


@pytest.mark.parametrize(("make", "route"), [(VLLMServer, GENERATE), (SGLangServer, SGLANG_GENERATE)])
async def test_a_prompt_as_long_as_the_context_does_not_fit(make: Make, route: Route) -> None:
    async with make(always(SAID), context=8) as server:
        with pytest.raises(ContextFullError):
            await ask(server, route, [5] * 8, request(max_tokens=1))


async def test_sglang_refuses_a_prompt_that_leaves_too_little_room() -> None:
    async with SGLangServer(always(SAID), context=8) as server:
        with pytest.raises(ContextFullError):
            await ask(server, SGLANG_GENERATE, sampling=request(max_tokens=5))


async def test_a_route_the_server_was_not_started_for_is_absent() -> None:
    async with VLLMServer(always(SAID), scale_out=False) as server:
        with pytest.raises(EndpointError) as caught:
            await ask(server, GENERATE)
        assert (await ask(server, COMPLETIONS)).completions[0].tokens == SAID.ids
    assert caught.value.cause in MISSING_ROUTE


async def test_the_route_of_another_engine_is_absent() -> None:
    async with VLLMServer(always(SAID)) as server:
        with pytest.raises(EndpointError) as caught:
            await ask(server, SGLANG_GENERATE)
    assert caught.value.cause in MISSING_ROUTE


@pytest.mark.parametrize(
    ("make", "route"), [(VLLMServer, GENERATE), (SGLangServer, SGLANG_GENERATE)], ids=["vllm", "sglang"]
)
async def test_each_token_has_the_version_that_drew_it(make: Make, route: Route) -> None:
    changed = Tokens(SAID.ids, spans=(("default", 0, 1), ("step-3", 1, 4)))
    async with make(always(changed)) as server:
        assert (await ask(server, route)).completions[0].versions == (0, 3, 3, 3)


async def test_the_completions_route_does_not_say() -> None:
    async with VLLMServer(always(SAID), weights="3") as server:
        assert (await ask(server, COMPLETIONS)).completions[0].versions == (None,) * 4


async def test_an_sglang_without_spans_names_one_version_for_all() -> None:
    async with SGLangServer(always(SAID), weights="3", spans=False) as server:
        assert (await ask(server, SGLANG_GENERATE)).completions[0].versions == (3,) * 4


async def test_tokens_that_no_span_covers_have_no_version() -> None:
    async with VLLMServer(always(Tokens(SAID.ids, spans=(("7", 2, 4),)))) as server:
        assert (await ask(server, GENERATE)).completions[0].versions == (None, None, 7, 7)


LOGPROBS = {
    GENERATE: ("choices", 0, "logprobs", "content"),
    COMPLETIONS: ("choices", 0, "logprobs", "token_logprobs"),
    SGLANG_GENERATE: ("meta_info", "output_token_logprobs"),
}
IDS = {
    GENERATE: ("choices", 0, "token_ids"),
    COMPLETIONS: ("choices", 0, "token_ids"),
    SGLANG_GENERATE: ("output_ids",),
}
PROMPT_IDS = {
    GENERATE: ("prompt_token_ids",),
    COMPLETIONS: ("choices", 0, "prompt_token_ids"),
    SGLANG_GENERATE: ("prompt_token_ids",),
}


async def refused(make: Make, route: Route, change: Callable[[Any], Any]) -> EndpointError:
    async with make(always(Altered(SAID, change))) as server:
        with pytest.raises(EndpointError) as caught:
            await ask(server, route)
    return caught.value


@each_route
async def test_missing_logprobs_are_told_and_not_asked_for_again(make: Make, route: Route) -> None:
    error = await refused(make, route, without(*LOGPROBS[route]))
    assert error.cause == "no_logprobs" and not isinstance(error, RetryableEndpointError)


@pytest.mark.parametrize("logprob", [-9999.0, -3.4e38, None, "low"])
async def test_a_logprob_that_no_sampled_token_can_have_is_told(logprob: Any) -> None:
    path = ("choices", 0, "logprobs", "content", 1, "logprob")
    assert (await refused(VLLMServer, GENERATE, put(logprob, *path))).cause == "no_logprobs"


@each_route
async def test_missing_tokens_are_told(make: Make, route: Route) -> None:
    error = await refused(make, route, without(*IDS[route]))
    assert error.cause == ("no_tokens" if route is COMPLETIONS else "bad_response")


@each_route
async def test_more_tokens_than_logprobs_are_told(make: Make, route: Route) -> None:
    error = await refused(make, route, put([*SAID.ids, 9], *IDS[route]))
    assert error.cause == "bad_response" and "4 logprobs for 5 tokens" in str(error)


@each_route
async def test_a_logprob_of_another_token_is_told(make: Make, route: Route) -> None:
    error = await refused(make, route, put([11, 12, 14, STOP], *IDS[route]))
    assert error.cause == "bad_response" and "logprobs of the tokens" in str(error)


@each_route
async def test_tokens_that_are_no_ids_are_told(make: Make, route: Route) -> None:
    assert (await refused(make, route, put(["a"], *IDS[route]))).cause == "bad_response"


@each_route
async def test_a_prompt_that_is_no_ids_is_told(make: Make, route: Route) -> None:
    assert (await refused(make, route, put("text", *PROMPT_IDS[route]))).cause == "bad_response"


@each_route
async def test_a_prompt_that_is_not_echoed_is_none(make: Make, route: Route) -> None:
    async with make(always(Altered(SAID, without(*PROMPT_IDS[route])))) as server:
        assert (await ask(server, route)).prompt is None


@each_route
@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_a_completion_broken_off_can_be_asked_for_again(make: Make, route: Route, reason: str) -> None:
    async with make(always(Tokens((11,), reason))) as server:
        with pytest.raises(RetryableEndpointError) as caught:
            await ask(server, route)
    assert caught.value.cause == "aborted"


@each_route
async def test_another_number_of_completions_is_told(make: Make, route: Route) -> None:
    async with make(always((SAID, SAID))) as server:
        with pytest.raises(EndpointError, match="2 completions instead of 3"):
            await ask(server, route, sampling=request(n=3))


@each_route
@pytest.mark.parametrize("raw", [None, [], {}, "text", 3, [None], {"choices": None}, {"choices": [None]}])
def test_a_body_of_another_shape_is_a_bad_response(make: Make, route: Route, raw: Any) -> None:
    with pytest.raises(EndpointError) as caught:
        route.answer(raw, PROMPT, request())
    assert caught.value.cause == "bad_response"


@pytest.mark.parametrize("span", [{}, None, {"version": "1", "start": -1, "end": 2}, ["1", 0, 2]])
async def test_a_span_of_versions_that_cannot_be_is_told(span: Any) -> None:
    error = await refused(VLLMServer, GENERATE, put([span], "choices", 0, "weight_versions"))
    assert error.cause == "bad_response"


@each_route
@pytest.mark.parametrize(("fault", "cause"), [(Reset(), "connection"), (Garbage(), "bad_response")])
async def test_a_broken_connection_or_body_names_the_cause(
    make: Make, route: Route, fault: TokenReply, cause: str
) -> None:
    async with make(always(fault)) as server:
        with pytest.raises(RetryableEndpointError) as caught:
            await ask(server, route)
    assert caught.value.cause == cause


FIELDS = (
    "choices finish_reason token_ids logprobs content token_logprobs tokens weight_versions usage prompt_token_ids "
    "output_ids meta_info output_token_logprobs weight_version type"
).split()
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(raw=json)
@each_route
def test_nothing_a_server_says_is_more_than_an_endpoint_error(make: Make, route: Route, raw: Any) -> None:
    with contextlib.suppress(EndpointError):
        route.answer(raw, PROMPT, request())

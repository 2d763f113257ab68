import asyncio

from prometheus_client.parser import text_string_to_metric_families

from tests.support.inference import USER, ids, inference, saying

CHAT = "/v1/chat/completions"


async def test_it_is_ready_only_once_it_can_sample() -> None:
    async with inference(None) as server:
        before = [(await server(path))[0] for path in ("/health", "/v1/models")]
        server.policy.publish(2, saying("Yes."))
        after = await server("/health")
    assert before == [503, 503] and after == (200, {"status": "ready", "policy_version": 2})


async def test_it_is_not_ready_while_its_weights_are_withdrawn() -> None:
    async with inference(saying("Yes.")) as server:
        server.policy.withdraw()
        assert (await server("/health"))[0] == 503


async def test_the_process_answers_before_it_can_sample() -> None:
    async with inference(None) as server:
        assert await server("/ping") == (200, {"status": "alive"})


async def test_who_asks_too_early_is_told_when_to_ask_again() -> None:
    async with inference(None) as server, server.session.get("/health") as response:
        assert int(response.headers["Retry-After"]) >= 1


async def test_the_model_is_listed_with_its_context() -> None:
    async with inference(saying("Yes."), context_tokens=333) as server:
        [model] = (await server("/v1/models"))[1]["data"]
    assert (model["id"], model["object"], model["max_model_len"], model["policy_version"]) == (
        "policy",
        "model",
        333,
        3,
    )


async def test_metrics_tell_tokens_and_how_many_requests_were_joined() -> None:
    async with inference(saying("Yes.")) as server:
        await asyncio.gather(*(server.right(CHAT, {"messages": [USER]}) for _ in range(4)))
        _, raw = await server("/metrics")
    figures = dict(line.rsplit(" ", 1) for line in raw.decode().splitlines() if not line.startswith("#"))
    assert int(figures["hermes_rl_completion_tokens_total"]) == 4 * len(ids("Yes."))
    assert int(figures["hermes_rl_prompt_tokens_total"]) > 0
    assert int(figures["hermes_rl_sampling_requests_total"]) == 4
    assert int(figures["hermes_rl_sampling_calls_total"]) < 4
    assert float(figures["hermes_rl_sampling_seconds_total"]) > 0
    assert figures["hermes_rl_policy_version"] == "3"
    assert figures['hermes_rl_requests_total{method="POST",route="/v1/chat/completions",status="200"}'] == "4"


async def test_a_prometheus_client_reads_all_metrics() -> None:
    async with inference(saying("Yes.")) as server:
        await server.right(CHAT, {"messages": [USER]})
        async with server.session.get("/metrics") as response:
            families = {family.name: family for family in text_string_to_metric_families(await response.text())}
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert {family.type for family in families.values()} == {"counter", "gauge", "histogram"}
    count = next(one for one in families["hermes_rl_sampling_latency_seconds"].samples if one.name.endswith("_count"))
    assert count.value == 1

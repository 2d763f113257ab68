import asyncio
from typing import Any

import pytest

from hermes_rl import APIServerConfig, HermesAgentEnvConfig
from hermes_rl.inference.concurrency_limiter import LimiterConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.rollout.concurrency import (
    ConcurrencyConfig,
    Slots,
    engine_limiter_config,
    evaluation_concurrency,
    training_concurrency,
)

AUTO = ConcurrencyConfig(size=4, fixed=8, initial=2, maximum=8)


def config(**fields: Any) -> HermesAgentEnvConfig:
    return HermesAgentEnvConfig.model_validate(fields)


def slots(width: ConcurrencyConfig, law: LimiterConfig | None = None) -> Slots:
    return Slots(ServerManager([APIServerConfig(base_url="http://127.0.0.1:1/v1")], limiter_config=law), width)


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({}, ConcurrencyConfig(4, 16, 16, 256)),
        ({"max_num_workers": 3}, ConcurrencyConfig(4, 3, 3, 3)),
        ({"max_num_workers": 100}, ConcurrencyConfig(4, 100, 16, 100)),
        ({"group_size": 8, "max_live_sandboxes": 16}, ConcurrencyConfig(8, 16, 16, 16)),
        ({"max_num_workers_per_node": 1, "max_live_sandboxes": 40}, ConcurrencyConfig(4, 2, 2, 10)),
    ],
)
def test_a_number_of_workers_that_is_given_is_the_most(fields: dict[str, Any], width: ConcurrencyConfig) -> None:
    assert training_concurrency(config(**fields), 2) == width


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({}, ConcurrencyConfig(1, 16, 16, 1024, "eval")),
        ({"max_eval_workers": 4}, ConcurrencyConfig(1, 4, 4, 4, "eval")),
        ({"max_eval_workers": 64, "eval_samples": 4}, ConcurrencyConfig(4, 16, 4, 16, "eval")),
        ({"max_eval_workers": 2, "eval_samples": 4}, ConcurrencyConfig(4, 1, 1, 1, "eval")),
    ],
)
def test_the_same_holds_for_an_evaluation(fields: dict[str, Any], width: ConcurrencyConfig) -> None:
    assert evaluation_concurrency(config(**fields)) == width


def test_requests_follow_engines_only_where_it_is_asked_for() -> None:
    assert engine_limiter_config(config()) is None
    assert engine_limiter_config(config(concurrency="auto")) is not None


@pytest.mark.parametrize(("weight", "law"), [(2.0, 2.0), (0.0, 0.1), (1000.0, 10.0)])
def test_the_weight_of_an_environment_is_its_weight_at_the_engines(weight: float, law: float) -> None:
    found = engine_limiter_config(config(concurrency="auto", inference_weight=weight))
    assert found is not None and found.weight == law


async def test_a_fixed_number_is_held() -> None:
    fixed = slots(ConcurrencyConfig(4, 2, 2, 2))
    async with fixed.adjusting():
        await fixed.acquire()
        await fixed.acquire()
        third = asyncio.create_task(fixed.acquire())
        await asyncio.sleep(0.01)
        assert not third.done()
        fixed.release()
        await third
    assert (fixed.metrics(), fixed.describe()) == ({}, None)


async def test_by_pressure_it_begins_with_the_first() -> None:
    assert slots(AUTO, LimiterConfig()).limit == 2


async def test_one_group_may_run_whatever_the_limit() -> None:
    following = slots(ConcurrencyConfig(16, 1, 1, 1), LimiterConfig())
    async with following.adjusting():
        await following.acquire()
    assert following.limit == 1


async def test_whoever_waits_is_let_in_when_the_limit_rises() -> None:
    following, told = slots(ConcurrencyConfig(4, 8, 1, 8), LimiterConfig()), asyncio.Event()
    async with following.adjusting(told.set):
        await following.acquire()
        second = asyncio.create_task(following.acquire())
        [engine] = following._server.servers
        async with asyncio.timeout(20):
            while not second.done():
                engine.answers["train"] += 40
                await asyncio.sleep(0.05)
    assert told.is_set()
    await following._server.close()


async def test_answers_of_an_evaluation_do_not_widen_training() -> None:
    following = slots(ConcurrencyConfig(4, 8, 1, 8), LimiterConfig())
    async with following.adjusting():
        await following.acquire()
        [engine] = following._server.servers
        for _ in range(10):
            engine.answers["eval"] += 40
            await asyncio.sleep(0.05)
    assert following.limit == 1
    await following._server.close()


async def test_the_figures_are_limits_cuts_and_queues() -> None:
    assert set(slots(AUTO, LimiterConfig()).metrics()) == {
        f"pressure/{name}"
        for name in (
            *("rollouts_limit", "rollouts_cuts", "requests", "requests_limit", "requests_held"),
            *("refusals", "losses", "cuts", "moves", "engines"),
        )
    }

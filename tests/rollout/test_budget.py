"""Limits of tokens, money and time: nothing new begins after one, what was begun is kept, and a raised one goes on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hermes_rl import APIServerConfig
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Rollout, StopReason, Usage
from hermes_rl.rollout.budget import Budget, Prices
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.store.records import read_groups
from tests.rollout.test_rollout import writes_the_number
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, delayed

PRICED = APIServerConfig(base_url="http://h/v1", model_name="m", prompt_price=2.0, completion_price=10.0)
FREE = APIServerConfig(base_url="http://h/v1", model_name="m")


def rollout(usage: Usage) -> Rollout:
    return Rollout(
        item_id="i",
        index=0,
        seed=0,
        messages=[],
        score=1.0,
        stop_reason=StopReason.NATURAL,
        turns_used=1,
        usage=usage,
    )


async def made(
    path: Path, model: ScriptedModel, endpoint: Mapping[str, Any] | None = None, **config: Any
) -> RolloutCounts:
    config = {"total_steps": 10, "group_size": 1, "max_num_workers": 2} | config
    async with opened(FileEnv, model, **config) as env:
        for name, value in (endpoint or {}).items():
            setattr(env.server.configs[0], name, value)
        return await generate_groups(env, path, resume=path.exists())


def test_spending_is_counted_by_the_prices_of_a_million_tokens() -> None:
    budget = Budget.from_config(HermesAgentEnvConfig(), [PRICED])
    budget.add([rollout(Usage(1_000_000, 500_000)), rollout(Usage(500_000, 0))])
    assert (budget.tokens, budget.spent) == (2_000_000, 8.0)


def test_without_prices_nothing_is_said_of_spending() -> None:
    budget = Budget.from_config(HermesAgentEnvConfig(), [FREE])
    budget.add([rollout(Usage(1_000_000, 500_000))])
    assert budget.spent is None


def test_a_spend_limit_without_prices_is_refused_with_the_flags_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"--openai\.prompt_price and --openai\.completion_price"):
        Budget.from_config(HermesAgentEnvConfig(spend_limit=1), [FREE])


def test_endpoints_of_different_prices_are_refused() -> None:
    with pytest.raises(ConfigError, match="the same prices"):
        Budget.from_config(HermesAgentEnvConfig(), [PRICED, FREE])


@pytest.mark.parametrize(
    ("budget", "reached"),
    [
        (Budget(token_limit=100), None),
        (Budget(token_limit=30), "token_limit: 30 of 30 tokens"),
        (Budget(spend_limit=1e-4, prices=Prices(1, 1)), None),
        (Budget(spend_limit=2e-5, prices=Prices(1, 1)), "spend_limit: 3e-05 of 2e-05"),
        (Budget(time_limit=1e9), None),
        (Budget(time_limit=1e-9), "time_limit: "),
    ],
)
def test_a_limit_is_named_when_it_is_reached(budget: Budget, reached: str | None) -> None:
    budget.add([rollout(Usage(20, 10))])
    told = budget.reached_limit()
    assert told is None if reached is None else (told or "").startswith(reached)


async def test_a_token_limit_ends_a_run_and_a_raised_one_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    async with ScriptedModel(writes_the_number) as model:
        tally = await made(path, model, token_limit=40)
        used = tally.budget.tokens
        first = tally.groups
        assert tally.limit == f"token_limit: {used} of 40 tokens"
        assert 0 < first < 10
        # Two in flight, each of the same few tokens, can pass the limit and no more.
        assert 40 <= used < 40 + 2 * used / first
        assert (await made(path, model, token_limit=40)).groups == first
        assert (await made(path, model, token_limit=10**6)).limit is None
    assert sorted(group.draw for group in read_groups(path)) == list(range(10))


async def test_a_spend_limit_ends_a_run(tmp_path: Path) -> None:
    prices = {"prompt_price": 1e6, "completion_price": 1e6}
    async with ScriptedModel(writes_the_number) as model:
        tally = await made(tmp_path / "groups.jsonl", model, prices, spend_limit=25)
    assert tally.limit is not None and tally.limit.startswith("spend_limit")
    assert tally.groups < 10
    assert tally.summary()["spent"] == float(tally.budget.tokens)


async def test_a_time_limit_ends_a_run_and_counts_anew_when_it_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    async with ScriptedModel(delayed(0.3, writes_the_number)) as model:
        first = await made(path, model, time_limit=0.4)
        second = await made(path, model, time_limit=0.4)
    assert first.limit is not None and first.limit.startswith("time_limit")
    assert 0 < first.groups < second.groups <= 10
    assert first.failures == {}


class Uncounting(ScriptedModel):
    """An endpoint that says nothing of tokens."""

    def _answer(self, body: dict[str, Any], message: Mapping[str, Any], finish_reason: str) -> web.Response:
        whole = super()._answer(body, message, finish_reason)
        assert isinstance(whole.body, bytes)
        answer = {key: value for key, value in json.loads(whole.body).items() if key != "usage"}
        return web.json_response(answer)


@pytest.mark.parametrize("limit", [{"token_limit": 10**9}, {"spend_limit": 1e9}])
async def test_an_endpoint_that_counts_no_tokens_ends_a_run_that_has_a_limit_of_them(
    tmp_path: Path, limit: dict[str, Any]
) -> None:
    prices = {"prompt_price": 1.0, "completion_price": 1.0}
    async with Uncounting(writes_the_number) as model:
        tally = await made(tmp_path / "groups.jsonl", model, prices, **limit)
    assert tally.limit is not None and "reports no token usage" in tally.limit
    assert "--env.time_limit" in tally.limit
    assert 0 < tally.groups <= 4


async def test_an_endpoint_that_counts_no_tokens_does_without_a_limit(tmp_path: Path) -> None:
    async with Uncounting(writes_the_number) as model:
        tally = await made(tmp_path / "groups.jsonl", model, total_steps=3, time_limit=100)
    assert (tally.groups, tally.limit) == (3, None)

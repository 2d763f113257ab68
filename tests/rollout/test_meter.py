"""Limits count everything that is asked: judges and simulated users too, and rollouts that are still in flight."""

from typing import Any, ClassVar

import pytest

from hermes_rl import AgentResult, APIServerConfig, ToolContext
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Usage
from hermes_rl.inference.meter import Meter
from hermes_rl.rewards.judge import Judge
from hermes_rl.rollout import budget
from hermes_rl.rollout.budget import Budget
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.store.records import read_groups
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Delayed, ScriptedModel, Text, always

PRICED = APIServerConfig(base_url="http://h/v1", model_name="m", prompt_price=2.0, completion_price=10.0)
FREE = APIServerConfig(base_url="http://free/v1", model_name="m")
VERDICT = always(Text('{"reasons": "because", "score": 1}'))


class Judged(FileEnv):
    judge_endpoint: ClassVar[APIServerConfig]

    async def setup(self) -> None:
        await super().setup()
        self.judge = await self.enter(Judge(self.judge_endpoint, "Is it right?"))

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return (await self.judge.assess(f"{item}", result.final_response)).score


def test_requests_are_metered_at_the_price_of_their_endpoint() -> None:
    meter = Meter()
    meter.add(Usage(1_000_000, 100_000), PRICED)
    meter.add(Usage(5, 5), FREE)
    assert (meter.used.tokens, meter.used.cost) == (1_100_010, 3.0)
    assert meter.unpriced == {"http://free/v1"}


def test_the_tokens_of_groups_in_flight_and_of_judges_count() -> None:
    limited, meter = Budget(token_limit=100), Meter()
    limited.start(meter)
    meter.add(Usage(90, 10), FREE)
    assert limited.reached_limit() == "token_limit: 100 of 100 tokens"
    assert limited.reached_limit(budget.OVERRUN) is None
    meter.add(Usage(50, 0), FREE)
    assert limited.reached_limit(budget.OVERRUN) == "token_limit: 150 of 100 tokens"


def test_a_cost_limit_ends_where_an_endpoint_has_no_prices() -> None:
    limited, meter = Budget.from_config(HermesAgentEnvConfig(spend_limit=5), [PRICED]), Meter()
    limited.start(meter)
    meter.add(Usage(1, 1), FREE)
    assert "an endpoint without prices (http://free/v1)" in str(limited.reached_limit())


def test_a_cost_limit_needs_the_prices_of_the_simulated_user() -> None:
    with pytest.raises(ConfigError, match=r"env\.user_endpoint, 0 if it is free"):
        Budget.from_config(HermesAgentEnvConfig(spend_limit=5, user_endpoint=FREE), [PRICED])


async def test_a_judge_counts_with_its_environment(tmp_path: Any) -> None:
    async with ScriptedModel(VERDICT) as judge, ScriptedModel(always(Text("done"))) as model:
        Judged.judge_endpoint = APIServerConfig(base_url=judge.base_url, model_name="scripted")
        async with opened(Judged, model, group_size=1, total_steps=2) as env:
            tally = await generate_groups(env, tmp_path / "groups.jsonl")
            used = env.server.meter.used
    judged = sum(len(str(body)) > 0 for body in judge.bodies)
    assert judged == 2
    # The scripted server counts words; the judge's instructions alone have more than a hundred.
    assert used.tokens > tally.budget.tokens + 100
    assert tally.budget.total().tokens == used.tokens


async def test_groups_in_flight_beyond_the_overrun_are_dropped_and_made_by_resuming(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "CHECK_SECONDS", 0.01)

    def script(request: dict[str, Any]) -> Any:
        slow = int(request["messages"][0]["content"].split()[-1]) > 1
        return Delayed(30, Text("x")) if slow else Text("word " * 60)

    path = tmp_path / "groups.jsonl"
    config: dict[str, Any] = {"group_size": 1, "total_steps": 3, "max_num_workers": 3}
    async with ScriptedModel(script) as model, opened(FileEnv, model, token_limit=40, **config) as env:
        tally = await generate_groups(env, path)
    assert tally.dropped >= 2 and tally.groups + tally.dropped == 3
    assert str(tally.limit).startswith("token_limit: ")
    async with ScriptedModel(always(Text("x"))) as model, opened(FileEnv, model, **config) as env:
        await generate_groups(env, path, resume=True)
    assert sorted(group.draw for group in read_groups(path)) == [0, 1, 2]

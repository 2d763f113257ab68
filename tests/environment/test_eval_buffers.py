"""An evaluation cannot touch what training collects, in whatever way an author collects it."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from hermes_rl import AgentResult, HermesAgentBaseEnv, ToolContext
from hermes_rl.environment.eval_copy import copy_back, copy_for_evaluation
from hermes_rl.rollout.generate import generate_groups
from tests.rollout.test_rollout import writes_the_number
from tests.support.environments import opened
from tests.support.scripted_model import Calls, Reply, ScriptedModel, Text, delayed


@dataclass
class Kept:
    rewards: list[float] = field(default_factory=list)
    count: int = 0


class Collecting(HermesAgentBaseEnv):
    """Collects in every way seen in the field: lists, nested containers, counters, objects, class attributes."""

    default_toolsets: ClassVar[tuple[str, ...]] = ("terminal",)
    shared_buffer: ClassVar[list[float]] = []

    async def setup(self) -> None:
        self._reward_buffer: list[float] = []
        self.by_item: dict[int, list[float]] = defaultdict(list)
        self.rows: list[list[float]] = [[]]
        self.kept = Kept()
        self.count = 0
        self.note = self.collect
        self.eval_metrics: list[tuple[str, float]] = []

    def train_items(self) -> list[dict[str, int]]:
        return [{"number": number} for number in range(4)]

    def eval_items(self) -> list[dict[str, int]]:
        return [{"number": 100 + number} for number in range(3)]

    def format_prompt(self, item: dict[str, int]) -> str:
        return f"write {item['number']}"

    def collect(self, item: dict[str, int], reward: float) -> None:
        self._reward_buffer.append(reward)
        self.by_item[item["number"]].append(reward)
        self.rows[-1].append(reward)
        self.kept.rewards.append(reward)
        self.kept.count += 1
        self.shared_buffer.append(reward)
        self.count += 1

    async def compute_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float:
        reward = 1.0 if item["number"] < 100 else 0.0
        self.note(item, reward)
        return reward

    def collected(self) -> tuple[Any, ...]:
        return (
            list(self._reward_buffer),
            {number: list(rewards) for number, rewards in self.by_item.items()},
            [list(row) for row in self.rows],
            list(self.kept.rewards),
            self.kept.count,
            list(self.shared_buffer),
            self.count,
            dict(self.item_rewards.estimates),
            list(self.rollouts_for_wandb),
            list(self._tool_error_buffer),
        )


class SeedStyle(Collecting):
    """Evaluates by hand as the seed does, and draws training items while at it."""

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        await self.get_next_item()
        result, ctx = AgentResult(messages=[]), ToolContext("none")
        rewards = [await self.compute_reward(item, result, ctx) for item in self.eval_items()]
        self.config.max_agent_turns = 1
        self.rollouts_for_wandb.append([("an evaluation's", 0.0)])
        self._tool_error_buffer.append({"turn": 0, "tool": "none", "args": "", "error": "an evaluation's"})
        self.eval_metrics.append(("eval/mean_reward", sum(rewards) / len(rewards)))
        await self.wandb_log({})
        await self.evaluate_log(metrics=dict(self.eval_metrics), verbose=False)

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        metrics = dict(wandb_metrics or {})
        if self._reward_buffer:
            metrics["train/mean_reward"] = sum(self._reward_buffer) / len(self._reward_buffer)
            self._reward_buffer.clear()
        self.eval_lines = [*getattr(self, "eval_lines", []), metrics]
        await super().wandb_log(metrics)


@pytest.fixture(autouse=True)
def _empty_class_buffer() -> None:
    Collecting.shared_buffer.clear()


def says_done(request: dict[str, Any]) -> Reply:
    return Text("done")


@pytest.mark.parametrize("environment", [Collecting, SeedStyle])
async def test_an_evaluation_leaves_all_buffers_as_they_were(environment: type[Collecting], tmp_path: Any) -> None:
    config: dict[str, Any] = {
        "data_dir_to_save_evals": str(tmp_path),
        "total_steps": 2,
        "group_size": 2,
        "item_sampler": "in_order",
    }
    async with ScriptedModel(says_done) as model, opened(environment, model, **config) as env:
        await env.collect_group({"number": 0})
        await env.add_rollouts_for_wandb({"messages": [[]], "scores": [1.0]})
        before, turns = env.collected(), env.config.max_agent_turns
        await env.run_evaluate()
        assert env.collected() == before
        assert env.config.max_agent_turns == turns
        draw = await env.next_draw()
        assert draw is not None and draw.number == 0
        assert env.last_evaluation is not None


async def test_what_is_named_for_evaluation_is_given_back(tmp_path: Any) -> None:
    async with ScriptedModel(says_done) as model, opened(SeedStyle, model, data_dir_to_save_evals=str(tmp_path)) as env:
        await env.run_evaluate()
        await env.run_evaluate()
        assert env.eval_metrics == [("eval/mean_reward", 0.0)] * 2


async def test_training_at_the_same_time_collects_its_own_and_nothing_else(tmp_path: Any) -> None:
    def script(request: dict[str, Any]) -> Reply:
        return delayed(0.02, says_done)(request)

    config: dict[str, Any] = {
        "data_dir_to_save_evals": str(tmp_path),
        "total_steps": 6,
        "group_size": 2,
        "eval_samples": 3,
    }
    async with ScriptedModel(script) as model, opened(Collecting, model, **config) as env:
        async with asyncio.TaskGroup() as both:
            both.create_task(generate_groups(env, tmp_path / "train.jsonl"))
            both.create_task(env.run_evaluate())
        assert env._reward_buffer == [1.0] * 12
        assert (env.kept.count, env.count, env.rows) == (12, 12, [[1.0] * 12])
        assert set(env.by_item) <= set(range(4))
        assert env.item_rewards.groups == 6
        assert env.last_evaluation is not None
        assert env.last_evaluation["metrics"]["eval/mean_reward"] == 0.0


async def test_tool_errors_of_an_evaluation_are_not_told_as_trainings(tmp_path: Any) -> None:
    def breaks(request: dict[str, Any]) -> Reply:
        answer = writes_the_number(request)
        return Calls([("no_such_tool", "{}")]) if isinstance(answer, Calls) else answer

    async with ScriptedModel(breaks) as model, opened(Collecting, model, data_dir_to_save_evals=str(tmp_path)) as env:
        await env.run_evaluate()
        assert env._tool_error_buffer == []
        assert env.last_evaluation is not None
        assert env.last_evaluation["metrics"]["eval/tool_errors"] == 3


def test_what_stands_in_two_places_still_does_in_the_twin() -> None:
    class Env:
        def __init__(self) -> None:
            self.buffer: list[int] = []
            self.also = {"buffer": self.buffer}
            self.loop: list[Any] = []
            self.loop.append(self.loop)

    env = Env()
    twin = copy_for_evaluation(env)
    twin.also["buffer"].append(1)
    assert (twin.buffer, env.buffer) == ([1], [])
    assert twin.loop[0] is twin.loop


def test_the_items_of_a_dataset_are_not_copied() -> None:
    class Env:
        def __init__(self) -> None:
            self.items = [{"number": number} for number in range(5000)]

    env = Env()
    twin = copy_for_evaluation(env)
    twin.items.pop(0)
    assert twin.items[0] is env.items[1]
    assert len(env.items) == 5000
    copy_back(twin, env)
    assert len(env.items) == 5000

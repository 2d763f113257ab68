"""Several rewards a rollout, comparison within a group, retries and rules, on real sandboxes and a scripted model."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from hermes_rl import AgentResult, JudgeError, Reward, ToolContext
from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.rollout.group import run_group
from hermes_rl.store.records import read_groups
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Text

ITEM = {"number": 7}


class Quick(FileEnv):
    """No sandbox needed: a rollout's own words are its score."""

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        return float(result.final_response)


def by_seed(request: dict[str, Any]) -> Text:
    return Text(str(request["seed"] % 4))


async def test_components_and_turns_are_kept_beside_the_total(tmp_path: Path) -> None:
    class Composed(Quick):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Reward:
            return Reward(0.5, {"right": 1, "short": 0.0}, (0.25,))

    async with ScriptedModel(by_seed) as model, opened(Composed, model, total_steps=2, group_size=2) as env:
        tally = await generate_groups(env, tmp_path / "groups.jsonl")
    group = next(read_groups(tmp_path / "groups.jsonl"))
    assert group.rollouts[0].score == 0.5
    assert group.rollouts[0].components == {"right": 1.0, "short": 0.0}
    assert group.rollouts[0].turn_scores == (0.25,)
    assert tally.summary()["components"] == {"right": 1.0, "short": 0.0}


@pytest.mark.parametrize(
    "wrong", [Reward(1.0, {"x": float("nan")}), Reward(1.0, {}, (float("inf"),)), Reward(float("nan"))]
)
async def test_a_component_that_is_no_number_leaves_no_score(wrong: Reward) -> None:
    class Wrong(Quick):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Reward:
            return wrong

    async with ScriptedModel(by_seed) as model, opened(Wrong, model) as env:
        group = await run_group(env, ITEM, size=2)
    assert [str(rollout.failure) for rollout in group.rollouts] == ["verifier/not_finite"] * 2


async def test_a_group_is_judged_by_comparison_of_its_scored_rollouts() -> None:
    class Ranked(Quick):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            if result.final_response == "0":
                raise JudgeError("endpoint", "no verdict")
            return float(result.final_response)

        async def compute_group_rewards(self, item: Any, results: Sequence[AgentResult]) -> list[float | Reward]:
            own = [result.reward.score for result in results if result.reward]
            return [Reward(float(sum(other < score for other in own)), {"own": score}) for score in own]

    async with ScriptedModel(by_seed) as model, opened(Ranked, model, rollout_retries=0) as env:
        group = await run_group(env, ITEM, size=12)
    said = [int(rollout.messages[-1]["content"]) for rollout in group.rollouts]
    assert 0 in said and len(set(said)) > 2
    for word, rollout in zip(said, group.rollouts, strict=True):
        if word == 0:
            assert str(rollout.failure) == "judge/endpoint"
        else:
            assert rollout.score == sum(0 < other < word for other in said)
            assert rollout.components == {"own": float(word)}


@pytest.mark.parametrize(
    ("given", "cause"),
    [([1.0], "verifier/group_rewards"), ([1.0, math.nan], "verifier/not_finite"), (None, "verifier/group_raised")],
)
async def test_a_comparison_that_fails_leaves_nobody_with_a_score(given: Any, cause: str) -> None:
    class Broken(Quick):
        async def compute_group_rewards(self, item: Any, results: Sequence[AgentResult]) -> Any:
            if given is None:
                raise ZeroDivisionError
            return given

    async with ScriptedModel(by_seed) as model, opened(Broken, model) as env:
        group = await run_group(env, ITEM, size=2)
    assert [str(rollout.failure) for rollout in group.rollouts] == [cause] * 2


async def test_a_rollout_that_failed_once_is_tried_again_and_counted(tmp_path: Path) -> None:
    class Shaky(Quick):
        tries: ClassVar[Counter[int]] = Counter()

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            self.tries[item["number"]] += 1
            if self.tries[item["number"]] == 1:
                raise SandboxError("died", "once")
            return 1.0

    async with ScriptedModel(by_seed) as model, opened(Shaky, model, total_steps=3, group_size=1) as env:
        tally = await generate_groups(env, tmp_path / "groups.jsonl")
    assert (tally.scores, tally.failures, tally.retried) == ([1.0] * 3, {}, {"sandbox/died": 3})
    [first, *_] = read_groups(tmp_path / "groups.jsonl")
    assert first.rollouts[0].metadata["earlier_failures"] == ["sandbox/died"]


async def test_groups_unfit_for_training_are_kept_withheld_and_counted(tmp_path: Path) -> None:
    class Mixed(Quick):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            if item["number"] == 1:
                return 1.0
            if item["number"] == 2 and result.final_response != "0":
                raise ValueError(item)
            return float(result.final_response)

    async with ScriptedModel(by_seed) as model, opened(Mixed, model, total_steps=3, group_size=8) as env:
        tally = await generate_groups(env, tmp_path / "groups.jsonl")
    withheld = {group.item["number"]: group.withheld for group in read_groups(tmp_path / "groups.jsonl")}
    assert withheld == {1: "equal_scores", 2: "too_few_scored", 3: None}
    assert tally.withheld_groups == {"equal_scores": 1, "too_few_scored": 1}


async def test_the_rules_are_the_authors_to_change(tmp_path: Path) -> None:
    async with (
        ScriptedModel(lambda request: Text("1")) as model,
        opened(Quick, model, total_steps=1, group_size=2, ensure_scores_are_not_same=False) as env,
    ):
        group = await env.collect_group(ITEM)
    assert group.withheld is None


async def test_an_evaluation_item_in_training_is_an_error(tmp_path: Path) -> None:
    class Leaky(Quick):
        async def get_next_item(self) -> dict[str, int]:
            return {"number": 103}

    async with ScriptedModel(by_seed) as model, opened(Leaky, model, total_steps=1) as env:
        with pytest.raises(ConfigError, match="held out for evaluation"):
            await generate_groups(env, tmp_path / "groups.jsonl")


async def test_items_given_as_a_list_are_drawn_by_the_framework(tmp_path: Path) -> None:
    class Listed(Quick):
        def train_items(self) -> list[dict[str, int]]:
            return [{"number": number} for number in range(5)]

    async with ScriptedModel(by_seed) as model, opened(Listed, model, total_steps=10, group_size=1) as env:
        await generate_groups(env, tmp_path / "groups.jsonl")
        assert env.dataset_hash
        assert {"number": 3} in [await env.get_next_item() for _ in range(5)]
    groups = sorted(read_groups(tmp_path / "groups.jsonl"), key=lambda group: group.draw)
    assert [group.draw for group in groups] == list(range(10))
    assert sorted(group.item["number"] for group in groups) == sorted([*range(5), *range(5)])
    assert len({group.id for group in groups}) == 10
    seeds = [rollout.seed for group in groups for rollout in group.rollouts]
    assert len(set(seeds)) == 10, "a second epoch must not repeat the first one's rollouts"


async def test_what_setup_enters_is_closed_with_the_environment() -> None:
    class Resource:
        state = "new"

        async def __aenter__(self) -> Self:
            self.state = "open"
            return self

        async def __aexit__(self, *_: object) -> None:
            self.state = "closed"

    class Holder(Quick):
        async def setup(self) -> None:
            await super().setup()
            self.resource = await self.enter(Resource())

    async with ScriptedModel(by_seed) as model, opened(Holder, model) as env:
        assert env.resource.state == "open"
    assert env.resource.state == "closed"
    with pytest.raises(RuntimeError, match="not open"):
        await env.enter(Resource())

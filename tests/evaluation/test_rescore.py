"""Recorded rollouts scored again: from the transcript, or by their tool calls in fresh sandboxes."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hermes_rl import AgentResult, JudgeError, Reward, Rollout, StopReason, ToolContext
from hermes_rl.core.trajectory import Group
from hermes_rl.evaluation.rescore import RescoreSource, RescoreStats, rescore_groups
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.store.records import read_groups
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Calls, ScriptedModel, Status, Text


def writes_or_not(request: dict[str, Any]) -> Text | Calls:
    """Three turns: makes a file, appends to it, says a word. Every third rollout writes something else."""
    number = request["messages"][0]["content"].split()[-1]
    word = number if (request["seed"] - len(request["messages"]) // 2 - 1) % 3 else "other"
    if len(request["messages"]) == 1:
        return Calls([("write_file", json.dumps({"path": "answer", "content": ""}))])
    if len(request["messages"]) == 3:
        return Calls([("terminal", json.dumps({"command": f"printf {word} >> answer"}))])
    return Text(f"wrote {word}")


class Talker(FileEnv):
    """Scored by what was said."""

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        return 1.0 if result.final_response == f"wrote {item['number']}" else 0.0


class Swallowing(FileEnv):
    """An author who takes any error for a failed check."""

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        try:
            return await super().compute_reward(item, result, ctx)
        except Exception:  # noqa: BLE001 - that is the point
            return 0.0


async def recorded(environment: type[FileEnv], path: Path, **config: Any) -> list[Group]:
    async with (
        ScriptedModel(writes_or_not) as model,
        opened(environment, model, total_steps=4, group_size=3, **config) as env,
    ):
        await generate_groups(env, path)
    return list(read_groups(path))


async def rescored(
    environment: type[FileEnv], groups: list[Group], source: RescoreSource = RescoreSource.AUTO
) -> tuple[list[Group], RescoreStats]:
    moved, kept = RescoreStats(), list[Group]()
    async with ScriptedModel(lambda _: Text("never asked")) as model, opened(environment, model, group_size=3) as env:
        await rescore_groups(env, groups, kept.append, moved, source=source)
    assert not model.requests
    return kept, moved


def scores(groups: list[Group]) -> list[list[float]]:
    return [group.scores for group in groups]


@pytest.mark.parametrize("environment", [FileEnv, Swallowing])
async def test_nothing_moves_when_nothing_changed(environment: type[FileEnv], tmp_path: Path) -> None:
    groups = await recorded(environment, tmp_path / "groups.jsonl")
    assert 0 < sum(map(sum, scores(groups))) < 12
    kept, moved = await rescored(environment, groups)
    assert scores(kept) == scores(groups)
    assert [group.id for group in kept] == [group.id for group in groups]
    assert (moved.same, moved.up, moved.down, moved.replayed, moved.from_transcript) == (12, 0, 0, 12, 0)
    assert (moved.calls, moved.calls_that_differ) == (24, 0)


async def test_a_reward_that_reads_only_the_conversation_needs_no_sandbox(tmp_path: Path) -> None:
    groups = await recorded(FileEnv, tmp_path / "groups.jsonl")
    kept, moved = await rescored(Talker, groups)
    assert scores(kept) == scores(groups)
    assert (moved.from_transcript, moved.replayed, moved.calls) == (12, 0, 0)


async def test_a_changed_reward_tells_what_moved(tmp_path: Path) -> None:
    class Generous(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
            return Reward(max(0.5, float(await super().compute_reward(item, result, ctx))), {"generous": 1.0})  # type: ignore[arg-type]

    groups = await recorded(FileEnv, tmp_path / "groups.jsonl")
    kept, moved = await rescored(Generous, groups)
    wrong = sum(score == 0.0 for row in scores(groups) for score in row)
    assert (moved.up, moved.same, moved.down) == (wrong, 12 - wrong, 0)
    assert moved.summary()["mean_after"] == pytest.approx(moved.summary()["mean_before"] + 0.5 * wrong / 12)
    assert all(rollout.components == {"generous": 1.0} for group in kept for rollout in group.rollouts)
    assert moved.examples[0]["from"] == 0.0 and moved.examples[0]["to"] == 0.5


def test_a_change_by_rounding_is_none() -> None:
    before = Rollout(item_id="i", index=0, seed=0, messages=[], score=0.8, stop_reason=StopReason.NATURAL)
    group: Any = SimpleNamespace(id="g", item_id="i")
    stats = RescoreStats()
    stats.add(group, before, replace(before, score=0.1 + 0.7))
    stats.add(group, before, replace(before, score=0.7))
    assert (stats.same, stats.up, stats.down, len(stats.examples)) == (1, 0, 1, 1)


async def test_the_transcript_alone_is_refused_to_a_reward_that_looks_further(tmp_path: Path) -> None:
    groups = await recorded(FileEnv, tmp_path / "groups.jsonl")
    kept, moved = await rescored(Swallowing, groups, RescoreSource.TRANSCRIPT)
    assert scores(kept) == [[]] * 4
    assert moved.failures == {"sandbox/transcript": 12}
    assert moved.no_longer_scored == 12


async def test_what_the_verifier_could_not_score_is_scored_now_and_what_the_world_broke_stays(tmp_path: Path) -> None:
    class Faulty(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
            if item["number"] == 1:
                raise ValueError(item)
            if item["number"] == 2:
                raise JudgeError("down", "the judge is away")
            return await super().compute_reward(item, result, ctx)

    def fails_on_three(request: dict[str, Any]) -> Text | Calls | Status:
        return Status(500) if request["messages"][0]["content"].endswith(" 3") else writes_or_not(request)

    async with (
        ScriptedModel(fails_on_three) as model,
        opened(Faulty, model, total_steps=4, group_size=3, rollout_retries=0) as env,
    ):
        await generate_groups(env, tmp_path / "groups.jsonl")
    groups = list(read_groups(tmp_path / "groups.jsonl"))
    kept, moved = await rescored(FileEnv, groups)
    assert moved.newly_scored == 6
    assert moved.not_scorable == 3
    broken = next(group for group in kept if group.item["number"] == 3)
    assert {str(rollout.failure) for rollout in broken.rollouts} == {"endpoint/http_500"}


async def test_an_answer_that_differs_is_told(tmp_path: Path) -> None:
    groups = await recorded(FileEnv, tmp_path / "groups.jsonl")
    text = (tmp_path / "groups.jsonl").read_text().replace("printf", "echo too; printf")
    (tmp_path / "changed.jsonl").write_text(text)
    _, moved = await rescored(FileEnv, list(read_groups(tmp_path / "changed.jsonl")))
    assert moved.calls_that_differ == 12
    assert "too" in moved.drift[0]["replayed"]
    assert len(groups) == 4


async def test_calls_that_were_refused_then_are_not_carried_out_now(tmp_path: Path) -> None:
    def refused(request: dict[str, Any]) -> Text | Calls:
        if len(request["messages"]) > 1:
            return Text("done")
        return Calls([("no_such_tool", "{}"), ("terminal", "not json"), ("terminal", '{"command": "true"}')])

    async with ScriptedModel(refused) as model, opened(FileEnv, model, total_steps=1, group_size=1) as env:
        await generate_groups(env, tmp_path / "groups.jsonl")
    _, moved = await rescored(FileEnv, list(read_groups(tmp_path / "groups.jsonl")))
    assert (moved.calls, moved.calls_that_differ) == (1, 0)

"""`process`: every rollout is written, groups run beside each other, the end of the items ends the run.

What an ended run left is gone on with: the draws that are missing are made, and no other.
"""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import AgentResult, Reward, ToolContext
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.file_lock import exclusive_lock
from hermes_rl.rollout.display import summary_table
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.rollout.sampler import content_id
from hermes_rl.store.records import read_groups
from tests.chaos.killed_runs import all_but_times
from tests.rollout.test_rollout import writes_the_number
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import (
    Delayed,
    EmptyChoices,
    Reset,
    ScriptedModel,
    Status,
    Text,
    Truncated,
    always,
    delayed,
)


async def test_groups_are_written_with_their_failures(tmp_path: Path) -> None:
    def odd_numbers_fail(request: dict[str, Any]) -> Any:
        number = int(request["messages"][0]["content"].split()[-1])
        return Status(500) if number % 2 else writes_the_number(request)

    path = tmp_path / "groups.jsonl"
    async with (
        ScriptedModel(odd_numbers_fail) as model,
        opened(FileEnv, model, metrics_path=tmp_path / "metrics.jsonl", total_steps=4, group_size=3) as env,
    ):
        tally = await generate_groups(env, path)
    groups = {group.item["number"]: group for group in read_groups(path)}
    assert sorted(groups) == [1, 2, 3, 4]
    assert {number: len(group.scored) for number, group in groups.items()} == {1: 0, 2: 3, 3: 0, 4: 3}
    assert (tally.failures, tally.scores) == ({"endpoint/http_500": 6}, [1.0] * 6)
    assert b"train/mean_score" in (tmp_path / "metrics.jsonl").read_bytes()


async def test_every_kind_of_fault_is_counted_and_printed_and_none_is_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replies: dict[int, Any] = {
        1: Status(500), 2: Truncated(), 3: EmptyChoices(), 4: Reset(), 5: Delayed(30, Text("too late")),
    }  # fmt: skip

    class Faulty(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
            if item["number"] == 6:
                raise ZeroDivisionError
            if item["number"] == 7:
                return math.nan
            if item["number"] == 8:
                await (await self.tools.session(ctx.task_id).sandbox()).close()
            return await super().compute_reward(item, result, ctx)

    def script(request: dict[str, Any]) -> Any:
        number = int(request["messages"][0]["content"].split()[-1])
        return replies.get(number) or writes_the_number(request)

    async with ScriptedModel(script) as model, opened(Faulty, model, total_steps=9, group_size=2) as env:
        env.server.configs[0].timeout = 3
        tally = await generate_groups(env, tmp_path / "groups.jsonl")
    summary_table("process", tally, {})
    assert tally.failures == {
        "endpoint/http_500": 2, "endpoint/bad_response": 2, "endpoint/empty_choices": 2, "endpoint/connection": 2,
        "endpoint/timeout": 2, "verifier/raised": 2, "verifier/not_finite": 2, "sandbox/closed": 2,
    }  # fmt: skip
    assert tally.scores == [1.0, 1.0]
    shown = capsys.readouterr().err
    assert all(f"not scored: {cause}" in shown for cause in tally.failures)


async def test_groups_run_beside_each_other_up_to_the_bound(tmp_path: Path) -> None:
    script = delayed(0.2, writes_the_number)
    async with (
        ScriptedModel(script) as model,
        opened(FileEnv, model, total_steps=6, group_size=2, max_num_workers=3) as env,
    ):
        await generate_groups(env, tmp_path / "groups.jsonl")
    assert 2 < model.peak <= 6


async def test_the_end_of_the_items_ends_the_run(tmp_path: Path) -> None:
    class Three(FileEnv):
        async def get_next_item(self) -> Any:
            return None if self.taken == 3 else await super().get_next_item()

    async with ScriptedModel(writes_the_number) as model, opened(Three, model, total_steps=50, group_size=1) as env:
        tally = await generate_groups(env, tmp_path / "groups.jsonl")
    assert tally.groups == 3


async def test_sync_calls_in_setup_reach_a_sandbox(tmp_path: Path) -> None:
    class Prepared(FileEnv):
        async def setup(self) -> None:
            await super().setup()
            ctx = ToolContext("preparation")
            self.seen = ctx.terminal("echo prepared")["output"]
            in_a_thread = await asyncio.to_thread(ctx.terminal, "echo thread")
            self.seen += in_a_thread["output"]
            ctx.cleanup()

    async with ScriptedModel(writes_the_number) as model, opened(Prepared, model) as env:
        assert env.seen == "prepared\nthread\n"
        assert env.tools.pool.live == 0


async def test_sync_calls_work_in_tasks_and_threads_that_a_reward_starts(tmp_path: Path) -> None:
    class Busy(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            async def in_a_task(word: str) -> str:
                return str(ctx.terminal(f"echo {word}")["output"])

            words = [*await asyncio.gather(in_a_task("one"), in_a_task("two"))]
            words.append((await asyncio.to_thread(ctx.terminal, "echo three"))["output"])
            loop = asyncio.get_running_loop()
            words.append((await loop.run_in_executor(None, ctx.terminal, "echo four"))["output"])
            return 1.0 if words == ["one\n", "two\n", "three\n", "four\n"] else 0.0

    async with ScriptedModel(writes_the_number) as model, opened(Busy, model, total_steps=4, group_size=4) as env:
        tally = await generate_groups(env, tmp_path / "groups.jsonl")
    assert (tally.scores, tally.failures) == ([1.0] * 16, {})


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


async def made(
    environment: type[FileEnv],
    path: Path,
    script: Any = writes_the_number,
    *,
    resume: bool | None = None,
    **config: Any,
) -> RolloutCounts:
    """Groups in a file, resumed when it is there unless told otherwise."""
    config = {"total_steps": 6, "group_size": 2, "max_num_workers": 2} | config
    async with ScriptedModel(script) as model, opened(environment, model, **config) as env:
        return await generate_groups(env, path, resume=path.exists() if resume is None else resume)


class Listed(FileEnv):
    def train_items(self) -> list[dict[str, int]]:
        return [{"number": number} for number in range(1, 5)]


@pytest.mark.parametrize("environment", [FileEnv, Listed])
async def test_a_resumed_run_makes_the_missing_groups_as_they_would_have_been(
    tmp_path: Path, environment: type[FileEnv]
) -> None:
    path = tmp_path / "groups.jsonl"
    await made(environment, path)
    whole = {group.draw: all_but_times(group) for group in read_groups(path)}
    path.write_bytes(b"".join(lines(path)[1:3]) + lines(path)[3][:-20])
    tally = await made(environment, path)
    groups = list(read_groups(path))
    assert sorted(group.draw for group in groups) == [0, 1, 2, 3, 4, 5]
    assert {group.draw: all_but_times(group) for group in groups} == whole
    assert (tally.groups, tally.scores) == (6, [1.0] * 12)


async def test_resuming_a_finished_run_asks_the_model_nothing(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    await made(FileEnv, path)
    before = path.read_bytes()
    tally = await made(FileEnv, path, script=always(Status(500)))
    assert path.read_bytes() == before
    assert (tally.groups, tally.failures) == (6, {})


async def test_a_run_is_made_longer_by_resuming_it(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    await made(FileEnv, path, total_steps=2)
    await made(FileEnv, path, total_steps=5)
    assert sorted(group.item["number"] for group in read_groups(path)) == [1, 2, 3, 4, 5]


async def test_by_difficulty_no_draw_is_made_twice(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    for total in (3, 8):
        await made(Listed, path, total_steps=total, item_sampler="by_difficulty")
    groups = list(read_groups(path))
    assert sorted(group.draw for group in groups) == list(range(8))
    assert len({group.id for group in groups}) == 8


async def test_by_difficulty_a_resumed_run_knows_the_rewards_of_the_run_before(tmp_path: Path) -> None:
    def sometimes_right(request: dict[str, Any]) -> Any:
        return writes_the_number(request) if request["seed"] % 2 else Text("no")

    path = tmp_path / "groups.jsonl"
    known = []
    for total in (12, 13):
        async with (
            ScriptedModel(sometimes_right) as model,
            opened(Listed, model, total_steps=total, group_size=4, item_sampler="by_difficulty") as env,
        ):
            await generate_groups(env, path, resume=path.exists())
            known.append(env.item_rewards)
    *before, last = read_groups(path)
    known[0].add(last.item_id, last.scores)
    assert known[0] == known[1] and known[1].groups == 13 == len(before) + 1
    assert known[1].largest_variance > 0


async def test_shards_make_one_stream_together(tmp_path: Path) -> None:
    for shard in range(3):
        await made(FileEnv, tmp_path / f"{shard}.jsonl", shard=shard, shards=3, total_steps=2)
    draws = [[(group.draw, group.item["number"]) for group in read_groups(tmp_path / f"{n}.jsonl")] for n in range(3)]
    assert [sorted(one) for one in draws] == [[(0, 1), (3, 4)], [(1, 2), (4, 5)], [(2, 3), (5, 6)]]


class Other(FileEnv):
    def train_items(self) -> list[dict[str, int]]:
        return [{"number": 7}]


@pytest.mark.parametrize(
    ("environment", "config", "what"),
    [
        (Listed, {"group_size": 3}, "the settings or the model"),
        (Other, {}, "the settings or the model"),
    ],
)
async def test_a_file_of_another_run_is_not_resumed(
    tmp_path: Path, environment: type[FileEnv], config: dict[str, Any], what: str
) -> None:
    path = tmp_path / "groups.jsonl"
    await made(Listed, path, total_steps=1)
    with pytest.raises(ConfigError, match=f"cannot be resumed: {what} changed.*--overwrite"):
        await made(environment, path, **config)
    assert len(lines(path)) == 1


async def test_a_changed_dataset_is_not_resumed(tmp_path: Path) -> None:
    items = [{"number": 1}]

    class Growing(FileEnv):
        def train_items(self) -> list[dict[str, int]]:
            return items

    path = tmp_path / "groups.jsonl"
    await made(Growing, path, total_steps=1)
    items.append({"number": 2})
    with pytest.raises(ConfigError, match="the dataset changed"):
        await made(Growing, path)


async def test_workers_and_limits_may_change_between_a_run_and_its_resumption(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    await made(FileEnv, path, total_steps=1)
    tally = await made(FileEnv, path, max_num_workers=5, token_limit=10**9, rollout_retries=3)
    assert tally.groups == 6


async def test_a_stream_that_does_not_repeat_ends_the_run_with_what_to_do(tmp_path: Path) -> None:
    class Unrepeatable(FileEnv):
        async def setup(self) -> None:
            await super().setup()
            self.taken = started[0]

    path = tmp_path / "groups.jsonl"
    started = [0]
    await made(Unrepeatable, path, total_steps=2)
    started[0] = 50
    with pytest.raises(ConfigError, match=r"get_next_item is not deterministic.*--overwrite"):
        await made(Unrepeatable, path)


async def test_an_error_of_get_next_item_is_raised_as_it_is_and_the_groups_in_flight_are_kept(tmp_path: Path) -> None:
    class Breaks(FileEnv):
        async def get_next_item(self) -> dict[str, int]:
            if self.taken == 2:
                raise LookupError("the third item is broken")
            return await super().get_next_item()

    path = tmp_path / "groups.jsonl"
    with pytest.raises(LookupError, match="the third item is broken"):
        await made(Breaks, path, script=delayed(0.3, writes_the_number), max_num_workers=8)
    assert [group.scores for group in read_groups(path)] == [[1.0, 1.0], [1.0, 1.0]]


class BrokenDisplay(FileEnv):
    """Each of the two hooks raises at one place, with another text each time."""

    async def add_rollouts_for_wandb(self, scored_data: dict[str, Any], item: Any = None) -> None:
        raise LookupError(f"no column for {item}")

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        raise TypeError("not a number")


async def test_an_error_in_a_display_hook_is_one_warning_with_its_line_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = await made(BrokenDisplay, tmp_path / "groups.jsonl")
    assert (tally.groups, tally.scores) == (6, [1.0] * 12)
    added, logged = (
        method.__code__.co_firstlineno + 1 for method in (BrokenDisplay.add_rollouts_for_wandb, BrokenDisplay.wandb_log)
    )
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert [line.partition("; ")[0].partition(" {")[0] for line in warnings] == [
        f"warning: add_rollouts_for_wandb raised LookupError at test_generate.py:{added}: no column for",
        f"warning: wandb_log raised TypeError at test_generate.py:{logged}: not a number",
    ]
    assert [line.split("; ")[1:] for line in warnings] == [
        ["the run goes on without these rollouts in its display", "fix the method in your environment"],
        ["the run goes on without these metrics", "fix the method in your environment"],
    ]


async def test_a_display_hook_may_be_a_plain_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged: list[Any] = []

    class Plain(FileEnv):
        def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:  # type: ignore[override]
            logged.append(wandb_metrics)

    await made(Plain, tmp_path / "groups.jsonl", total_steps=1)
    assert [metrics["train/groups"] for metrics in logged] == [1]
    assert "warning" not in capsys.readouterr().err


async def test_a_file_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    await made(FileEnv, path, total_steps=1)
    with exclusive_lock(path, "another name"), pytest.raises(ConfigError, match="another process is writing"):
        await made(FileEnv, path)
    assert (await made(FileEnv, path)).groups == 6


async def test_a_full_disk_ends_the_run_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(HermesRLError, match=r"groups.jsonl cannot be written: No space left on device.*--resume"):
        await made(FileEnv, path, resume=False)


async def test_the_split_is_stored_and_another_one_cannot_resume_the_run(tmp_path: Path) -> None:
    class Split(FileEnv):
        name = "split"

    class OtherSplit(Split):
        async def setup(self) -> None:
            await super().setup()
            self._eval_items = self._eval_items[1:]

    path = tmp_path / "groups.jsonl"
    await made(Split, path, total_steps=1)
    split = fast_json.loads((tmp_path / "groups.split.json").read_bytes())
    assert split["held_out"] == sorted(content_id({"number": 100 + index}) for index in range(5))
    with pytest.raises(ConfigError, match="the dataset changed"):
        await made(OtherSplit, path)

"""`process`: every rollout is written, groups run beside each other, the end of the items ends the run."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import AgentResult, ToolContext
from hermes_rl.environment.display import summary_table
from hermes_rl.environment.generation import generate_groups
from hermes_rl.store import read_groups
from tests.environment.test_rollouts import writes_the_number
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Delayed, EmptyChoices, Reset, ScriptedModel, Status, Text, Truncated, delayed


async def test_groups_are_written_with_their_failures(tmp_path: Path) -> None:
    def odd_numbers_fail(request: dict[str, Any]) -> Any:
        number = int(request["messages"][0]["content"].split()[-1])
        return Status(500) if number % 2 else writes_the_number(request)

    path = tmp_path / "groups.jsonl"
    async with ScriptedModel(odd_numbers_fail) as model, opened(FileEnv, model, total_steps=4, group_size=3) as env:
        env.metrics_path = tmp_path / "metrics.jsonl"
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
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
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

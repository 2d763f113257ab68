"""`process`: every rollout is written, groups run beside each other, the end of the items ends the run."""

import asyncio
from pathlib import Path
from typing import Any

from hermes_rl.environment.generation import generate_groups
from hermes_rl.store import read_groups
from tests.environment.test_rollouts import writes_the_number
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Status, delayed


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
    from hermes_rl import ToolContext

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

"""Many rollouts at once in one process: rewards that wait in their sandboxes do not wait for each other.

The full size and the figures are benchmarks/sync_rewards.py; here only what must hold on any machine.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import AgentResult, Reward, ToolContext
from hermes_rl.rollout.generate import generate_groups
from tests.rollout.test_rollout import writes_the_number
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel

ROLLOUTS = 64


@pytest.mark.slow
async def test_rewards_that_sleep_in_their_sandboxes_run_beside_each_other(tmp_path: Path) -> None:
    class Sleeps(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
            ctx.terminal("sleep 1")
            return await super().compute_reward(item, result, ctx)

    ticks = 0

    async def clock() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    config: dict[str, Any] = {"total_steps": ROLLOUTS // 8, "group_size": 8, "max_num_workers": ROLLOUTS}
    async with ScriptedModel(writes_the_number) as model, opened(Sleeps, model, **config) as env:
        ticking = asyncio.create_task(clock())
        began = time.monotonic()
        tally = await generate_groups(env, tmp_path / "groups.jsonl")
        seconds = time.monotonic() - began
        ticking.cancel()
    assert tally.scores == [1.0] * ROLLOUTS
    assert seconds < ROLLOUTS / 2
    assert ticks > seconds * 5

"""Stopping, and going on after it: what is in flight finishes or is given up, what is finished is delivered once."""

import asyncio
import time
from pathlib import Path
from typing import Any

from hermes_rl import AgentResult, ToolContext
from hermes_rl.store.database.store import Store
from tests.serving.counting_env import ITEMS, Ending, Streamed, number_asked, says_it, slowly
from tests.serving.parts import draws, serving, trainer, until
from tests.support.scripted_model import Hang
from tests.support.token_servers import Asked, VLLMServer
from tests.support.trajectory_api import served


async def test_what_is_in_flight_finishes_when_it_is_told_to_stop(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    async with (
        VLLMServer(slowly(0.5)) as model,
        serving(api, model.base_url, tmp_path) as run,
    ):
        await until(lambda: model.open == 6)
        done = await run.stopped("SIGTERM")
    assert await draws(store) == [0, 1, 2]
    assert (done.ended, done.cancelled, done.left) == ("SIGTERM", 0, 0)
    assert [environment.connected for environment in await store.environments()] == [False]


async def test_what_does_not_finish_in_time_is_given_up_and_made_by_the_next_run(
    tmp_path: Path, store: Store, api: str
) -> None:
    await trainer(store, max_staleness=100)

    def second_hangs(asked: Asked) -> Any:
        return Hang() if number_asked(asked) == 2 else says_it(asked)

    async with (
        VLLMServer(second_hangs) as model,
        serving(api, model.base_url, tmp_path, Ending, stop_timeout=1.0) as run,
    ):
        await until(lambda: run.board.tally.groups >= 5)
        began = time.monotonic()
        done = await run.stopped()
        # Without its own limit it would be the ten seconds of the others.
        assert time.monotonic() - began < 9
    assert done.cancelled == 1
    assert 1 not in await draws(store)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, Ending) as run:
        await run.ended()
    assert await draws(store) == list(range(ITEMS))


async def test_sandboxes_of_what_is_given_up_are_closed(tmp_path: Path, store: Store, api: str) -> None:
    class Slow(Streamed):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            await asyncio.to_thread(ctx.terminal, "sleep 100")
            return 0.0

    await trainer(store, max_staleness=100)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, Slow, stop_timeout=0.5) as run:
        await until(lambda: run.env.tools.pool.live == 6)
        await run.stopped()
        assert run.env.tools.pool.live == 0


async def test_what_the_api_did_not_take_stays_in_the_spool_for_the_next_run(
    tmp_path: Path, store: Store, free_port: int
) -> None:
    await trainer(store, max_staleness=100)
    url = f"http://127.0.0.1:{free_port}"
    async with (
        VLLMServer(slowly(0.2)) as model,
        serving(url, model.base_url, tmp_path, Ending, stop_timeout=1.5) as run,
    ):
        async with served(store, port=free_port):
            await until(lambda: model.open == 6)
        await until(lambda: run.board.delivery.spooled == 3)
        done = await run.stopped()
    assert done.left == 3
    assert len(list(done.spool.glob("*.group"))) == 3
    async with (
        VLLMServer(says_it) as model,
        served(store, port=free_port),
        serving(url, model.base_url, tmp_path, Ending) as run,
    ):
        done = await run.ended()
    assert (done.tally.groups, done.posted) == (ITEMS - 3, ITEMS)
    assert await draws(store) == list(range(ITEMS))

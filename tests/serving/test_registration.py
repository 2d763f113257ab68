"""An API that comes and goes: it is waited for, and what is finished meanwhile is delivered when it is back."""

import asyncio
from pathlib import Path

from hermes_rl.store.database.store import Store
from tests.serving.counting_env import ITEMS, Ending, says_it, slowly
from tests.serving.parts import draws, serving, trainer, until
from tests.support.token_servers import Asked, TokenReply, VLLMServer
from tests.support.trajectory_api import served


async def test_an_api_that_is_not_up_yet_is_waited_for(tmp_path: Path, store: Store, free_port: int) -> None:
    await trainer(store, max_staleness=100)
    url = f"http://127.0.0.1:{free_port}"
    async with VLLMServer(says_it) as model, serving(url, model.base_url, tmp_path, Ending) as run:
        await until(lambda: "cannot be reached" in (run.board.waiting or ""))
        async with served(store, port=free_port):
            await run.ended()
    assert await draws(store) == list(range(ITEMS))


async def test_groups_finished_while_the_api_is_away_are_delivered_when_it_is_back(
    tmp_path: Path, store: Store, free_port: int
) -> None:
    await trainer(store, max_staleness=100)
    seconds = [1.5]

    def as_slow_as_told(asked: Asked) -> TokenReply:
        return slowly(seconds[0])(asked)

    url = f"http://127.0.0.1:{free_port}"
    async with (
        VLLMServer(as_slow_as_told) as model,
        serving(url, model.base_url, tmp_path, Ending) as run,
    ):
        async with served(store, port=free_port):
            await until(lambda: model.open == 6)
        await until(lambda: run.board.delivery.spooled == 3 and run.board.delivery.away_since)
        seconds[0] = 0.0
        await asyncio.sleep(0.7)
        assert model.requests == 6
        async with served(store, port=free_port):
            done = await run.ended()
    assert await draws(store) == list(range(ITEMS))
    assert (done.posted, done.left) == (ITEMS, 0)


async def test_an_api_that_forgot_everything_is_registered_with_again(
    tmp_path: Path, store: Store, other_store: Store, free_port: int
) -> None:
    for one in (store, other_store):
        await trainer(one, max_staleness=100)
    url = f"http://127.0.0.1:{free_port}"
    async with (
        VLLMServer(slowly(0.05)) as model,
        serving(url, model.base_url, tmp_path, Ending) as run,
    ):
        async with served(store, port=free_port):
            await until(lambda: run.board.tally.groups >= 4)
        async with served(other_store, port=free_port):
            await run.ended()
    first, second = await draws(store), await draws(other_store)
    assert sorted({*first, *second}) == list(range(ITEMS))
    assert len(second) > 2

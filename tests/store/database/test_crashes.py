import asyncio
import json
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from hermes_rl.store.database.errors import StoreFullError, StoreUnavailableError
from hermes_rl.store.database.store import open_store
from tests.store.database.making import add_groups, make_group, make_large_group, with_trainer
from tests.store.database.postgres_server import PostgresServer

HERE = Path(__file__).parent
KILLS = 5
LINES = 40


async def adding(address: str, name: str, together: int, ids: str) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, HERE / "adding.py", address, name, str(together), ids), stdout=asyncio.subprocess.PIPE
    )


async def answers(process: Process, count: int) -> list[str]:
    """So many lines, then a kill, then what else had been said."""
    assert process.stdout is not None
    said = [(await process.stdout.readline()).decode() for _ in range(count)]
    process.send_signal(signal.SIGKILL)
    said += (await process.stdout.read()).decode().splitlines(keepends=True)
    await process.wait()
    return [line.strip() for line in said if line.endswith("\n")]


async def test_a_writer_killed_in_the_middle_loses_nothing_that_was_answered(address: str) -> None:
    lost = []
    for kill in range(KILLS):
        said = await answers(await adding(address, "e", 8, f"life {kill}"), LINES)
        async with open_store(address) as store:
            ids = [line.split(" ", 1)[1] for line in said]
            lost += [one for one in ids if (found := await store.group(one)) is None or found.data is None]
    assert lost == []


async def test_what_a_killed_writer_left_is_whole(address: str) -> None:
    await answers(await adding(address, "e", 8, "life"), LINES)
    async with open_store(address) as store:
        status = await store.status()
        page = await store.rollouts(limit=100_000)
    assert len(page.rollouts) == status.total.waiting == 2 * status.total.waiting_groups >= 2 * LINES


async def test_two_processes_that_add_the_same_ids_add_each_once(address: str) -> None:
    async with open_store(address):
        pass
    both = [await adding(address, name, 4, "same") for name in ("one", "other")]
    said = await asyncio.gather(*(answers(one, LINES) for one in both))
    new = [line[2:] for lines in said for line in lines if line.startswith("1 ")]
    posted_by_both = {line[2:] for line in said[0]} & {line[2:] for line in said[1]}
    assert posted_by_both and len(new) == len(set(new))


async def test_groups_of_a_killed_process_are_given_out_in_the_order_of_their_answers(address: str) -> None:
    said = await answers(await adding(address, "e", 1, "life"), LINES)
    async with open_store(address) as store:
        await with_trainer(store, batch_size=2 * LINES)
        batch = await store.lease("trainer", seconds=60)
    assert batch is not None
    assert [group.id for group in batch.groups] == [line.split(" ", 1)[1] for line in said[:LINES]]


def test_a_full_disk_loses_no_answered_group_and_leaves_the_store_usable(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, HERE / "filling.py", tmp_path / "store.db"], stdout=subprocess.PIPE, check=True, timeout=100
    )
    outcome = json.loads(done.stdout)
    assert outcome["late"] and outcome["read"]
    assert (outcome["refused"], outcome["lost"]) == ([], 0)


@pytest.mark.parts
async def test_a_full_disk_of_postgresql_loses_no_answered_group_and_leaves_the_store_usable() -> None:
    with PostgresServer() as server, server.small_disk(megabytes=8) as disk:
        async with open_store(disk.address) as store:
            environment = await with_trainer(store)
            answered: list[str] = []

            async def fill() -> None:
                for number in range(500):
                    await store.add(environment, make_large_group(str(number)))
                    answered.append(str(number))

            with pytest.raises(StoreFullError, match="free space"):
                await fill()
            await asyncio.to_thread(disk.grow, 64)
            assert (await store.add(environment, make_large_group("late"))).new
            assert answered and all([await store.group(one) for one in answered])


@pytest.mark.parts
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_the_store_goes_on_after_postgresql_was_restarted(how: signal.Signals) -> None:
    with PostgresServer() as server:
        async with open_store(server.new_schema()) as store:
            environment = await with_trainer(store)
            await add_groups(store, environment, 1)
            await asyncio.to_thread(server.stop, how)
            with pytest.raises(StoreUnavailableError):
                await store.add(environment, make_group())
            await asyncio.to_thread(server.start)
            assert (await store.add(environment, make_group())).new
            assert (await store.status()).total.waiting_groups == 2


@pytest.mark.parts
async def test_a_restart_between_two_calls_is_not_noticed(postgres: PostgresServer) -> None:
    async with open_store(postgres.new_schema()) as store:
        environment = await with_trainer(store)
        await asyncio.gather(*(store.add(environment, make_group()) for _ in range(16)))
        await asyncio.to_thread(postgres.stop)
        await asyncio.to_thread(postgres.start)
        done = await asyncio.gather(*(store.add(environment, make_group()) for _ in range(16)))
        assert all(one.new for one in done)

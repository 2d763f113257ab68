"""Writes that share a transaction, on both databases: none is to know of the others."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import pytest

from hermes_rl.store.database import sqlite_log
from hermes_rl.store.database.errors import UnknownEnvironmentError
from hermes_rl.store.database.sqlite import MAX_SHARED_BYTES
from hermes_rl.store.database.store import Store, open_engine, open_store
from hermes_rl.store.database.transactions import Transaction, execute
from tests.store.database.making import make_group, make_large_group, with_trainer


def keep(names: Sequence[str]) -> Transaction[list[str | Exception]]:
    for name in names:
        yield from execute("INSERT INTO versions (version, by_whom, set_at) VALUES (?, ?, 0)", ord(name), name)
        if name == "b":
            yield from execute("SELECT nothing FROM nowhere")
    return list(names)


async def test_one_that_fails_leaves_those_alone_that_share_its_transaction(address: str) -> None:
    async with open_engine(address) as engine:
        posts = (engine.write_shared(keep, name, sort_key=name, size=1) for name in "abc")
        first, second, third = await asyncio.gather(*posts, return_exceptions=True)
        rows = await engine.read(lambda: execute("SELECT by_whom FROM versions ORDER BY 1"))
    assert (first, third) == ("a", "c")
    assert isinstance(second, Exception)
    assert rows == [("a",), ("c",)]


async def test_an_unknown_environment_is_told_to_no_other(store: Store) -> None:
    environment = await with_trainer(store)
    posts = (store.add(number, make_group()) for number in (environment, environment + 9, environment))
    first, second, third = await asyncio.gather(*posts, return_exceptions=True)
    assert isinstance(second, UnknownEnvironmentError)
    assert not isinstance(first, BaseException)
    assert not isinstance(third, BaseException)


async def test_a_group_that_comes_many_times_at_once_is_new_once(store: Store) -> None:
    environment = await with_trainer(store)
    data = make_group()
    added = await asyncio.gather(*(store.add(environment, data) for _ in range(8)))
    assert sorted(one.new for one in added) == [False] * 7 + [True]
    assert len({one.place for one in added}) == 1


async def test_groups_that_come_together_keep_their_order_on_sqlite(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        environment = await with_trainer(store)
        added = await asyncio.gather(*(store.add(environment, make_group()) for _ in range(16)))
    places = [one.place for one in added]
    assert places == sorted(places)


async def test_a_small_write_waits_for_no_queue_of_groups(tmp_path: Path) -> None:
    begun, go = Event(), Event()
    done: list[str] = []

    def hold() -> Transaction[None]:
        yield from execute("SELECT 1")
        begun.set()
        go.wait(20)

    def large(names: Sequence[str]) -> Transaction[list[str | Exception]]:
        yield from execute("SELECT 1")
        done.extend(names)
        return list(names)

    def small() -> Transaction[None]:
        yield from execute("SELECT 1")
        done.append("small")

    async with open_engine(tmp_path / "store.db") as engine, asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.write(hold))
        await asyncio.to_thread(begun.wait, 20)
        for name in ("first", "second", "third"):
            tasks.create_task(engine.write_shared(large, name, sort_key=name, size=MAX_SHARED_BYTES))
        tasks.create_task(engine.write(small))
        await asyncio.sleep(0)
        go.set()
    assert done == ["small", "first", "second", "third"]


async def test_the_log_does_not_grow_for_ever_while_groups_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_BYTES", 200_000)
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_PAGES", 50)
    async with open_store(tmp_path / "store.db") as store:
        environment = await with_trainer(store)
        for number in range(100):
            await store.add(environment, make_large_group(str(number)))
        written = sum(len(make_large_group(str(number))) for number in range(100))
        assert (tmp_path / "store.db-wal").stat().st_size < written / 2

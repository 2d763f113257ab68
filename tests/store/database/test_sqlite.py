import asyncio
import sqlite3
from pathlib import Path

import pytest

from hermes_rl.store.database import sqlite_log
from hermes_rl.store.database.errors import StoreError, StoreUnavailableError
from hermes_rl.store.database.sqlite import SQLiteEngine
from hermes_rl.store.database.store import open_engine, open_store
from hermes_rl.store.database.transactions import Transaction, execute
from tests.store.database.making import make_group, with_trainer


async def test_writes_that_come_together_share_a_commit(tmp_path: Path) -> None:
    said: list[str] = []
    async with open_engine(tmp_path / "store.db") as engine:
        assert isinstance(engine, SQLiteEngine) and engine._writer._connection is not None
        engine._writer._connection.set_trace_callback(said.append)
        await asyncio.gather(*(engine.write(lambda: execute("SELECT 1")) for _ in range(64)))
    assert 1 <= said.count("COMMIT") < 16


async def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with open_store(path) as store:
        await store.add(await with_trainer(store), make_group())
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            async with asyncio.timeout(10):
                assert (await store.status()).total.waiting_groups == 1
        finally:
            other.close()


async def test_a_store_opens_and_reads_while_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with open_store(path) as store:
        await store.put_run("r1", name="first", state="running", settings={})
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        async with asyncio.timeout(10), open_store(path) as store:
            assert [run.id for run in await store.runs()] == ["r1"]
    finally:
        other.close()


async def test_a_file_held_for_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_log, "BUSY_SECONDS", 0.05)
    path = tmp_path / "store.db"
    async with open_store(path) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(StoreUnavailableError, match="locked by another"):
                await store.register_environment("e")
        finally:
            other.close()
        assert (await store.register_environment("e")).id == 1


async def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database, but long enough to be looked at as one" * 100)
    with pytest.raises(StoreError, match=r"store\.db"):
        async with open_store(path):
            pass


class Stop(BaseException):
    pass


def stopping() -> Transaction[None]:
    yield from execute("CREATE TABLE left_over (id INTEGER)")
    raise Stop


async def test_what_stops_a_transaction_leaves_nothing_of_it(tmp_path: Path) -> None:
    async with open_engine(tmp_path / "store.db") as engine:
        with pytest.raises(Stop):
            await engine.write(stopping)
        await engine.write(lambda: execute("CREATE TABLE left_over (id INTEGER)"))


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        pass
    with pytest.raises(StoreError, match="closed"):
        await store.status()


async def test_a_caller_that_gives_up_leaves_the_store_working(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        environment = await with_trainer(store)
        posts = [asyncio.create_task(store.add(environment, make_group())) for _ in range(8)]
        await asyncio.sleep(0)
        for post in posts:
            post.cancel()
        await asyncio.gather(*posts, return_exceptions=True)
        assert (await store.add(environment, make_group())).new

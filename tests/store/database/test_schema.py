import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.store.database.errors import NewerSchemaError
from hermes_rl.store.database.postgres import PostgresEngine
from hermes_rl.store.database.schema import MIGRATIONS, migrate
from hermes_rl.store.database.store import Store, open_engine, open_store
from hermes_rl.store.database.transactions import DatabaseEngine, Transaction, execute, insert_rows
from tests.store.database.making import add_groups, with_trainer

NEXT = ("ALTER TABLE groups ADD COLUMN note TEXT; CREATE INDEX groups_note ON groups (note);", {"sqlite": ""})
BROKEN: tuple[str, dict[str, str]] = ("CREATE TABLE half (id {int}); CREATE TABLE half (id {int});", {})


async def versions(engine: DatabaseEngine) -> list[int]:
    return [
        version for (version,) in await engine.read(lambda: execute("SELECT version FROM schema_versions ORDER BY 1"))
    ]


async def test_a_new_database_has_every_version(address: str) -> None:
    async with open_engine(address) as engine:
        assert await versions(engine) == list(range(1, len(MIGRATIONS) + 1))


async def test_a_database_that_is_up_to_date_is_left_alone(address: str) -> None:
    async with open_engine(address) as engine:
        assert await engine.write(lambda: migrate(engine.dialect)) == 0


async def test_stores_opened_at_once_make_one_schema(address: str) -> None:
    async def use() -> None:
        async with open_store(address) as store:
            await store.status()

    await asyncio.gather(*(use() for _ in range(4)))


async def as_of_version_1(engine: DatabaseEngine) -> int:
    """Register an environment as the version that knew only schema 1 did; its number."""
    [(environment,)] = await engine.write(
        lambda: execute(
            "INSERT INTO environments (name, instance, group_size, weight, minimum, settings, registered_at, seen_at, "
            "connected, running) VALUES ('e', '', 4, 1.0, 0.0, '{}', 0, 0, 1, 0) "
            "ON CONFLICT (name, instance) DO UPDATE SET connected = 1 RETURNING id"
        )
    )
    return int(environment)


def insert_without_seat(head: str, rows: Iterable[Sequence[Any]]) -> Transaction[None]:
    """Insert as the versions that knew no seats did."""
    wide = "seat" in head
    return insert_rows(head.replace(", seat", ""), [row[:-1] if wide else row for row in rows])


async def test_a_store_of_version_1_keeps_all_it_has_when_it_is_migrated(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine(address, MIGRATIONS[:1]) as engine:
        environment, old = await as_of_version_1(engine), Store(engine)
        with monkeypatch.context() as before:
            before.setattr("hermes_rl.store.database.groups.insert_rows", insert_without_seat)
            places = await add_groups(old, environment, 2)
        kept = [await old.group(place) for place in places]
        old.close()
    async with open_store(address) as store:
        assert [await store.group(place) for place in places] == kept
        assert {listed.rollout.seat for listed in (await store.rollouts()).rollouts} == {None}
        assert (await store.register_environment("e")).id == environment


async def test_an_environment_of_version_1_is_granted_work_after_it(address: str) -> None:
    async with open_engine(address, MIGRATIONS[:1]) as engine:
        environment = await as_of_version_1(engine)
    async with open_store(address) as store:
        assert await with_trainer(store, 8, max_staleness=0) == environment
        assert (await store.admit(environment, running=0, wanted=100, limit=100)).granted == 8


async def test_a_process_of_version_1_that_still_runs_goes_on_beside_it(address: str) -> None:
    async with open_engine(address, MIGRATIONS[:1]) as before:
        environment = await as_of_version_1(before)
        async with open_store(address):
            assert await as_of_version_1(before) == environment


async def test_a_store_is_migrated_by_one_of_those_that_open_it_at_once(address: str) -> None:
    async with open_engine(address, MIGRATIONS[:1]):
        pass

    async def use() -> None:
        async with open_store(address) as store:
            await store.status()

    await asyncio.gather(*(use() for _ in range(4)))
    async with open_engine(address) as engine:
        assert await versions(engine) == [1, 2, 3]


async def test_columns_that_come_later_are_added_to_groups_that_are_there(address: str) -> None:
    async with open_store(address) as store:
        places = await add_groups(store, await with_trainer(store), 2)
    async with open_engine(address, (*MIGRATIONS, NEXT)) as engine:
        rows = await engine.read(lambda: execute("SELECT place, note FROM groups ORDER BY place"))
        assert rows == [(place, None) for place in places]


async def test_a_migration_that_fails_leaves_nothing(address: str) -> None:
    async with open_engine(address) as engine:
        with pytest.raises(Exception, match="half"):
            await engine.write(lambda: migrate(engine.dialect, (*MIGRATIONS, BROKEN)))
        assert await versions(engine) == list(range(1, len(MIGRATIONS) + 1))
        await engine.write(lambda: execute("CREATE TABLE half (id BIGINT)"))


async def test_a_newer_schema_is_refused_with_what_to_do(address: str) -> None:
    async with open_engine(address, (*MIGRATIONS, NEXT)):
        pass
    with pytest.raises(NewerSchemaError, match="upgrade hermes-rl"):
        async with open_store(address):
            pass


async def test_blobs_are_stored_as_they_are(address: str) -> None:
    async with open_engine(address) as engine:
        if isinstance(engine, PostgresEngine):
            storage = (
                "SELECT attstorage::TEXT FROM pg_attribute WHERE attrelid = 'blobs'::REGCLASS AND attname = 'data'"
            )
            assert await engine.read(lambda: execute(storage)) == [("e",)]
        else:
            assert await engine.read(lambda: execute("PRAGMA page_size")) == [(16_384,)]


@pytest.mark.parametrize(("pragma", "value"), [("journal_mode", "wal"), ("synchronous", 2)])
async def test_sqlite_syncs_every_commit(tmp_path: Path, pragma: str, value: object) -> None:
    async with open_engine(tmp_path / "store.db") as engine:
        assert await engine.write(lambda: execute(f"PRAGMA {pragma}")) == [(value,)]

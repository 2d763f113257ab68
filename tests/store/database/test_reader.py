"""Looking into a store from outside: nothing is written, and what is no store is told."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.store.database.errors import NewerSchemaError
from hermes_rl.store.database.reader import StoreReader
from hermes_rl.store.database.store import Store, open_store
from tests.store.database.making import add_groups


async def test_groups_are_read_in_the_order_they_came(store: Store, address: str) -> None:
    environment = (await store.register_environment("e")).id
    places = await add_groups(store, environment, 3)

    def read() -> tuple[list[int], int, list[str], bytes | None, bytes | None]:
        with closing(StoreReader(address)) as reader:
            assert reader.waiting() == 12
            found = [kept.place for kept in reader.groups_after(0, 10)]
            return found, reader.newest(), reader.environments(), reader.data(places[0]), reader.data(10**6)

    found, newest, names, first, none = await asyncio.to_thread(read)
    assert (found, newest, names) == (places, places[-1], ["e"])
    assert first is not None and none is None


async def test_a_page_of_places_begins_after_the_last(store: Store, address: str) -> None:
    places = await add_groups(store, (await store.register_environment("e")).id, 3)

    def read() -> list[int]:
        with closing(StoreReader(address)) as reader:
            return [kept.place for kept in reader.groups_after(places[0], 1)]

    assert await asyncio.to_thread(read) == [places[1]]


def test_what_is_no_store_is_told(tmp_path: Path) -> None:
    other, text = tmp_path / "other.db", tmp_path / "text.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE groups (n)")
    text.write_bytes(b"no database at all" * 100)
    for path in (other, text, tmp_path / "missing.db"):
        with closing(StoreReader(str(path))) as reader, pytest.raises(ConfigError):
            reader.newest()
    assert not (tmp_path / "missing.db").exists()


async def test_a_later_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with open_store(path) as store:
        await store.register_environment("e")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO schema_versions VALUES (99, 'later')")
        connection.commit()
    with closing(StoreReader(str(path))) as reader, pytest.raises(NewerSchemaError):
        reader.newest()


async def test_nothing_can_be_written_through_it(store: Store, address: str) -> None:
    await store.register_environment("e")

    def write() -> None:
        with closing(StoreReader(address)) as reader:
            reader.newest()
            reader._query("DELETE FROM environments")

    with pytest.raises(Exception, match=r"read.?only"):
        await asyncio.to_thread(write)
    assert len(await store.environments()) == 1

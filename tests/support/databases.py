"""Fixtures of the store on both databases, for the conftest files that name them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hermes_rl.store.database.store import Store, open_store
from tests.store.database.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.parts)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_schema()


@pytest.fixture
async def store(address: str) -> AsyncIterator[Store]:
    async with open_store(address) as opened:
        yield opened

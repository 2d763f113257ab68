"""A store, an API over it, and an address for one that comes and goes."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_rl.store.database import Store, open_store
from tests.support.trajectory_api import served


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
async def other_store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path / "other.db") as opened:
        yield opened


@pytest.fixture
async def api(store: Store) -> AsyncIterator[str]:
    async with served(store) as url:
        yield url


@pytest.fixture
def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])

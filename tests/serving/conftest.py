"""A store, an API over it, and an address for one that comes and goes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_rl.store.database.store import Store, open_store
from tests.support import ports
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
    return ports.free_port()

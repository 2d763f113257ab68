"""Each test that takes `store` or `api` runs on both databases."""

from collections.abc import AsyncIterator

import pytest

from hermes_rl.store.database.store import Store
from tests.support.databases import address, postgres, store
from tests.support.trajectory_api import Caller, calling

__all__ = ["address", "api", "postgres", "store"]


@pytest.fixture
async def api(store: Store) -> AsyncIterator[Caller]:
    async with calling(store) as caller:
        yield caller

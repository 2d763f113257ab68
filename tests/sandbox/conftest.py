import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from hermes_rl.sandbox import Backend, BubblewrapBackend, LocalBackend, Sandbox


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the product runs on; `test_both_event_loops_do` tries the other."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(params=["bubblewrap", "local"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    backend: Backend = BubblewrapBackend() if request.param == "bubblewrap" else LocalBackend()
    yield backend
    await backend.close()


@pytest.fixture
async def sandbox(backend: Backend) -> AsyncIterator[Sandbox]:
    async with await backend.start() as sandbox:
        yield sandbox


@pytest.fixture
async def bubblewrap() -> AsyncIterator[BubblewrapBackend]:
    backend = BubblewrapBackend()
    yield backend
    await backend.close()


@pytest.fixture
async def jail(bubblewrap: BubblewrapBackend) -> AsyncIterator[Sandbox]:
    async with await bubblewrap.start() as sandbox:
        yield sandbox

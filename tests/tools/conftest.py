import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvloop

from hermes_rl.core import fast_json
from hermes_rl.sandbox.backends.registry import open_backend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools
from hermes_rl.tools.session import ToolSession

Call = Callable[..., Awaitable[dict[str, Any]]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the product runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(params=["bubblewrap", "local"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    backend = await open_backend(request.param)
    yield backend
    await backend.close()


@pytest.fixture
async def host(backend: Backend) -> AsyncIterator[ToolHost]:
    host = ToolHost(all_tools(), SandboxPool(backend), calls_in_flight=4, terminal_timeout=60)
    yield host
    await host.close()


@pytest.fixture
def session(host: ToolHost) -> ToolSession:
    return host.session("rollout")


@pytest.fixture
def call(session: ToolSession) -> Call:
    """One tool call of the session, its answer read as the model would."""

    async def call(name: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = fast_json.loads((await session.call(name, arguments)).text)
        return answer

    return call

"""A server of pages and answers on loopback, and a host with the web toolset open."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from hermes_rl.core import fast_json
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import open_toolsets
from hermes_rl.tools.session import ToolSession

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """A server that answers every request so; its address."""
    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def hosting(**settings: Any) -> AsyncIterator[ToolHost]:
    """A host with the web toolset open under these settings."""
    async with open_toolsets(["web"], {"web": settings}) as toolsets:
        host = ToolHost({}, SandboxPool(LocalBackend()), calls_in_flight=8, terminal_timeout=5, toolsets=toolsets)
        try:
            with host.running():
                yield host
        finally:
            await host.close()


@asynccontextmanager
async def session_of(**settings: Any) -> AsyncIterator[ToolSession]:
    async with hosting(**settings) as host:
        yield host.session("rollout")


async def ask(session: ToolSession, name: str, **arguments: Any) -> dict[str, Any]:
    """One tool call, its answer read as the model would."""
    answer: dict[str, Any] = fast_json.loads((await session.call(name, arguments)).text)
    return answer


async def forever() -> None:
    await asyncio.Event().wait()

"""The trajectory API on a free port of this machine, in this process, and a plain client of it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import uvicorn

from hermes_rl.api.server import ApiSettings, create_app
from hermes_rl.store.database.store import Store

GROUP = {"Content-Type": "application/vnd.hermes-rl.group"}
DEFAULTS = ApiSettings()


@asynccontextmanager
async def served(store: Store, settings: ApiSettings = DEFAULTS, *, port: int = 0) -> AsyncIterator[str]:
    """The URL of an API over the store, until the end."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        config = uvicorn.Config(create_app(store, settings), http="httptools", log_config=None, lifespan="on")
        server = uvicorn.Server(config)
        # Signals stay the test's own.
        serving = asyncio.create_task(server._serve([listening]))
        try:
            async with asyncio.timeout(10):
                while not server.started:
                    await asyncio.sleep(0.005)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


class Caller:
    """Calls routes and gives back the status and the answer's JSON, or its bytes where it is none."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    @property
    def port(self) -> int:
        base = self.session._base_url
        assert base is not None and base.port is not None
        return base.port

    async def __call__(self, method: str, path: str, **request: Any) -> tuple[int, Any]:
        async with self.session.request(method, path, **request) as response:
            json = response.content_type == "application/json"
            return response.status, await response.json() if json else await response.read()

    async def register(self, name: str = "e", **fields: Any) -> int:
        status, answer = await self("POST", "/v1/environments", json={"name": name, **fields})
        assert status == 200
        return int(answer["id"])

    async def post(self, environment: int, data: bytes) -> tuple[int, Any]:
        return await self("POST", f"/v1/environments/{environment}/groups", data=data, headers=GROUP)

    async def train(self, batch_size: int = 8, **fields: Any) -> None:
        said = {"name": "trainer", "batch_size": batch_size, **fields}
        assert (await self("POST", "/v1/trainers", json=said))[0] == 204

    async def lease(self, **fields: Any) -> tuple[int, Any]:
        return await self("POST", "/v1/batches", json={"trainer": "trainer", **fields})


@asynccontextmanager
async def calling(store: Store, settings: ApiSettings = DEFAULTS, **session: Any) -> AsyncIterator[Caller]:
    """An API over the store, and somebody who calls it."""
    async with served(store, settings) as url, aiohttp.ClientSession(url, **session) as client:
        yield Caller(client)

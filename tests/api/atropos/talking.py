"""How an Atropos trainer and its environments talk to a server, for the checks of faults.py."""

import asyncio
import json
from io import BytesIO
from time import perf_counter
from typing import Any, Protocol

import aiohttp

from tests.api.atropos.making import make_environment, make_registration, make_scored_data

# What is waited for before a server counts as stuck.
PATIENCE = 4.0
JSON = {"Content-Type": "application/json"}


class Server(Protocol):
    """A server of the Atropos protocol. A crash takes it away without a warning and starts it again."""

    @property
    def url(self) -> str: ...

    async def crash(self) -> None: ...


class FaultSeenError(AssertionError):
    """The server did what it should not."""


class Talk:
    """Calls a server as its trainer and its environments would."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session

    async def call(self, method: str, path: str, **request: Any) -> tuple[int, Any]:
        async with self.session.request(method, self.server.url + path, **request) as response:
            json_sent = response.content_type == "application/json"
            return response.status, await response.json() if json_sent else await response.text()

    async def train(self, batch_size: int = 8) -> None:
        """Register a trainer and ask for the first batch, before which run-api lets no environment in."""
        assert (await self.call("POST", "/register", json=make_registration(batch_size)))[0] == 200
        await self.call("GET", "/batch")

    async def join(self, group_size: int = 4, **fields: Any) -> int:
        status, told = await self.call("POST", "/register-env", json=make_environment(group_size, **fields))
        assert status == 200 and told["status"] == "success", told
        return int(told["env_id"])

    async def begin(self, batch_size: int = 8, group_size: int = 4) -> int:
        await self.train(batch_size)
        return await self.join(group_size)

    async def post(self, body: dict[str, Any]) -> int:
        # A stream, as aiohttp warns of large bodies that are none.
        text = BytesIO(json.dumps(body).encode())
        return (await self.call("POST", "/scored_data", data=text, headers=JSON))[0]

    async def fill(self, environment: int, count: int, size: int = 4) -> list[list[float]]:
        """Post so many groups; their scores, which tell them apart."""
        made = [make_scored_data(size, env_id=environment) for _ in range(count)]
        for group in made:
            assert await self.post(group) == 200
        return [group["scores"] for group in made]

    async def batch(self) -> list[list[float]] | None:
        """The scores of the groups in the next batch; FaultSeenError when there is an error in its place."""
        status, told = await self.call("GET", "/batch")
        if status != 200 or told.get("status") == "error":
            raise FaultSeenError(f"/batch answered {status}: {told}")
        return None if told["batch"] is None else [group["scores"] for group in told["batch"]]

    async def batch_soon(self) -> list[list[float]]:
        deadline = perf_counter() + PATIENCE
        while (batch := await self.batch()) is None:
            if perf_counter() > deadline:
                raise FaultSeenError("no batch ever comes")
            await asyncio.sleep(0.1)
        return batch

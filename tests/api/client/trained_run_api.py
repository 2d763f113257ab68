"""The trainer's side of a real run-api, called by hand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.run_api import RunApi

TRAINER = {
    "wandb_group": "g",
    "wandb_project": "p",
    "max_token_len": 64,
    "checkpoint_dir": "",
    "save_checkpoint_interval": 0,
    "starting_step": 0,
    "num_steps": 100,
}


class TrainedRunApi:
    """A run-api, and its trainer."""

    def __init__(self, server: RunApi, session: aiohttp.ClientSession) -> None:
        self.url = server.url
        self.port = server.port
        self._server = server
        self._session = session

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def kill(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def get(self, path: str) -> Any:
        async with self._session.get(self.url + path) as response:
            return await response.json()

    async def register(self, batch_size: int = 4) -> None:
        async with self._session.post(f"{self.url}/register", json={**TRAINER, "batch_size": batch_size}) as response:
            assert response.status == 200

    async def reset(self) -> None:
        async with self._session.get(f"{self.url}/reset_data") as response:
            assert response.status == 200

    async def batch(self) -> list[dict[str, Any]] | None:
        groups: list[dict[str, Any]] | None = (await self.get("/batch"))["batch"]
        return groups

    async def train(self, batch_size: int = 4) -> None:
        """Register a trainer and ask for its first batch, from when on environments are let in."""
        await self.register(batch_size)
        assert await self.batch() is None


@asynccontextmanager
async def trained_run_api(python: Path, folder: Path) -> AsyncIterator[TrainedRunApi]:
    server = await asyncio.to_thread(RunApi, python, folder / "run-api.log")
    with server:
        async with aiohttp.ClientSession() as session:
            yield TrainedRunApi(server, session)

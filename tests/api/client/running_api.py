"""A real API on a free loopback port, and a line to it that can be cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from hermes_rl.api.server import ApiSettings
from hermes_rl.store.database.store import Store, open_store
from tests.support.trajectory_api import DEFAULTS, served


class RunningApi:
    """An API that can be stopped and started again at the same address, on the same store or on another."""

    def __init__(self, database: Path, settings: ApiSettings) -> None:
        self.database = database
        self.port = 0
        self.url = ""
        self.store: Store
        self._settings = settings
        self._running = AsyncExitStack()

    async def start(self) -> None:
        self.store = await self._running.enter_async_context(open_store(self.database))
        self.url = await self._running.enter_async_context(served(self.store, self._settings, port=self.port))
        self.port = urlsplit(self.url).port or 0

    async def stop(self) -> None:
        await self._running.aclose()


@asynccontextmanager
async def running_api(database: Path, settings: ApiSettings = DEFAULTS) -> AsyncIterator[RunningApi]:
    api = RunningApi(database, settings)
    await api.start()
    try:
        yield api
    finally:
        await api.stop()


class Line:
    """A TCP line to a server. `cut_answers` answers are cut off after `bytes_let_through`; the requests arrive.

    With `cut_at_path` only answers to requests that begin so are cut.
    """

    def __init__(self, port: int) -> None:
        self.cut_answers = 0
        self.cut_at_path = b""
        self.bytes_let_through = 0
        self.cuts = 0
        self.url = ""
        self._port = port
        self._asked = b""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            forward = asyncio.create_task(self._forward(reader, back))
            try:
                await self._answer(there, writer)
            finally:
                forward.cancel()
                back.close()
        writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                self._asked = data if data[:1].isupper() else self._asked
                writer.write(data)
                await writer.drain()
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        through = 0
        while data := await reader.read(65_536):
            meant = self.cut_answers > 0 and self._asked.startswith(self.cut_at_path)
            if meant and through + len(data) > self.bytes_let_through:
                writer.write(data[: self.bytes_let_through - through])
                self.cut_answers -= 1
                self.cuts += 1
                return
            through += len(data)
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def line_to(port: int) -> AsyncIterator[Line]:
    line = Line(port)
    server = await asyncio.start_server(line.carry, "127.0.0.1", 0)
    line.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        server.close()

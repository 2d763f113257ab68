"""GatewayServer: one gateway for a process, on a port of this machine and behind doors of its own.

Always true: the port is reached from this machine only, unless somebody said otherwise. A door answers one rollout's
key and no other, has no address that anybody could find, and leaves nothing behind, however the process ends.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn.server import ServerState

from hermes_rl.api.listening import IDLE_CONNECTIONS, WAITING_CONNECTIONS, Protocol, listen, url_of
from hermes_rl.gateway.app import GatewayApp
from hermes_rl.gateway.passes import Pass, Passes

# Seconds that requests under way have to be answered when the port or a door closes.
LAST_WORDS = 2.0

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.ERROR)


class GatewayServer:
    """`passes.open(rollout)` gives a rollout its key, `door` a way in of its own. `async with` opens the port."""

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, passes: Passes | None = None, app: Any = None
    ) -> None:
        self.passes = Passes() if passes is None else passes
        self._host, self._port = host, port
        self._config = uvicorn.Config(
            GatewayApp(self.passes) if app is None else app,
            http=_Protocol,
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=IDLE_CONNECTIONS,
        )
        self._config.load()
        self._port_door: Door | None = None
        self.url = ""

    def url_of(self, opened: Pass) -> str:
        """The rollout's own root: what its agent calls the provider's address, /v1 not included."""
        return self.url + opened.path

    async def __aenter__(self) -> Self:
        listening = listen(self._host, self._port)
        self._port_door = Door(self._config, {})
        await self._port_door.listen(listening)
        self.url = url_of(listening)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._port_door is not None:
            await self._port_door.close()

    @asynccontextmanager
    async def door(self, opened: Pass) -> AsyncIterator["Door"]:
        """A door that answers this pass alone, until the end of the body."""
        door = Door(self._config, {"only": opened})
        try:
            yield door
        finally:
            await door.close()


class Door:
    """One way in, with its connections."""

    def __init__(self, config: uvicorn.Config, state: dict[str, Any]) -> None:
        self._config = config
        self._app_state = state
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._closed = False

    async def connect(self) -> socket.socket:
        """A new connection: the caller's end of it."""
        if self._closed:
            raise ConnectionRefusedError("this door of the gateway is closed")
        ours, theirs = socket.socketpair()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, theirs)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        return ours

    async def listen(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        self._server = await loop.create_server(self._protocol, sock=listening, backlog=WAITING_CONNECTIONS)

    def _protocol(self) -> asyncio.Protocol:
        return _Protocol(config=self._config, server_state=self._state, app_state=self._app_state)

    async def close(self) -> None:
        """Take no more; what is under way has a moment to be answered."""
        if self._closed:
            return
        self._closed = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=LAST_WORDS)
        for task in list(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks))
        for connection in list(self._state.connections):
            with suppress(AttributeError):
                connection.transport.abort()
        if self._server is not None:
            await self._server.wait_closed()


class _Protocol(Protocol):
    """Whoever sends what is no HTTP is to fill no log."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.logger = _LOG

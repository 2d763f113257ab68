"""GatewayServer: one gateway per process, on a local port and on private listeners.

The port is reachable from this machine only, unless configured otherwise. A listener accepts one rollout's key only,
has no address that could be found, and leaves nothing behind, however the process ends.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn.server import ServerState

from hermes_rl.gateway.api_keys import ApiKey, ApiKeys
from hermes_rl.gateway.app import GatewayApp
from hermes_rl.http.connections import ConnectionLimits, Connections, listen_backlog, raise_file_limit
from hermes_rl.http.server import KEEP_ALIVE_SECONDS, Protocol, listen, socket_url

# Seconds for running requests to be answered when the port or a listener closes.
GRACE_SECONDS = 2.0

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.ERROR)


class GatewayServer:
    """`keys.open(rollout)` issues a key, `listener` opens a private way in for it. `async with` opens the port."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keys: ApiKeys | None = None,
        app: Any = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self.keys = ApiKeys() if keys is None else keys
        self._host, self._port = host, port
        self._config = uvicorn.Config(
            GatewayApp(self.keys) if app is None else app,
            http=_Protocol,
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        self._config.load()
        self._limits = limits
        self._connections: Connections | None = None
        self._port_listener: SandboxListener | None = None
        self.url = ""

    def rollout_url(self, api_key: ApiKey) -> str:
        """The rollout's base URL, without /v1."""
        return self.url + api_key.path

    async def __aenter__(self) -> Self:
        raise_file_limit()
        listening = listen(self._host, self._port)
        self._port_listener = SandboxListener(self._config, {}, self._shared_connections())
        await self._port_listener.listen(listening)
        self.url = socket_url(listening)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._port_listener is not None:
            await self._port_listener.close()

    @asynccontextmanager
    async def listener(self, api_key: ApiKey) -> AsyncIterator["SandboxListener"]:
        """A listener that accepts only this key, until the end of the block."""
        listener = SandboxListener(self._config, {"only": api_key}, self._shared_connections(), api_key)
        try:
            yield listener
        finally:
            await listener.close()

    def _shared_connections(self) -> Connections:
        """Of the port and all listeners, which share this process's limit of open files."""
        if self._connections is None:
            self._connections = Connections(self._limits)
        return self._connections


class SandboxListener:
    """One listener and its connections. `client_key` counts as the client of all of them."""

    def __init__(
        self, config: uvicorn.Config, state: dict[str, Any], shared: Connections, client_key: Hashable | None = None
    ) -> None:
        self._config = config
        self._shared = shared
        self._client_key = client_key
        self._app_state = state
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._closed = False

    async def connect(self) -> socket.socket:
        """Open a connection and return the caller's end of it."""
        if self._closed:
            raise ConnectionRefusedError("this listener of the gateway is closed")
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
        self._server = await loop.create_server(self._protocol, sock=listening, backlog=listen_backlog())

    def _protocol(self) -> asyncio.Protocol:
        return _Protocol(
            open_connections=self._shared,
            client_key=self._client_key,
            config=self._config,
            server_state=self._state,
            app_state=self._app_state,
        )

    async def close(self) -> None:
        """Stop accepting; running requests have a moment to be answered."""
        if self._closed:
            return
        self._closed = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=GRACE_SECONDS)
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
    """Keeps malformed HTTP out of the logs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.logger = _LOG

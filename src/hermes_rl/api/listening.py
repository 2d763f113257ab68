"""A server of ours as part of a process: where it listens, who may call it there, and how it ends.

Always true: what others can reach has a token; a server says where it listens once it does, and at the end lets the
requests under way be answered.
"""

import asyncio
import ipaddress
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hermes_rl.errors import ConfigError

LAST_WORDS = 10.0
WAITING_CONNECTIONS = 2048
# Longer than clients keep an idle connection, ours 60 s: whoever closes second may meet a request on its way.
IDLE_CONNECTIONS = 75
LARGEST_HEAD = 64 * 1024
ENDING = (signal.SIGINT, signal.SIGTERM)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def own_names(host: str, token: str | None, flag: str = "--token") -> frozenset[str] | None:
    """The names that a server listening on this host may be called by; None for any, which a token makes safe.

    ConfigError when others could reach it without one.
    """
    if token is not None:
        return None
    if not is_loopback(host):
        raise ConfigError(
            f"others can reach {host}; pass {flag} env:NAME (or file:PATH) that they must send, or listen on 127.0.0.1"
        )
    bracketed = f"[{host}]" if ":" in host else host
    return frozenset({"localhost", "127.0.0.1", "[::1]", bracketed.lower()})


async def serve(app: ASGIApp, listening: socket.socket, *, ready: Callable[[str], None]) -> None:
    """Serve until a signal ends it; `ready` is told the URL."""
    await _Server(_config(app), lambda: ready(url_of(listening)), takes_signals=True).serve([listening])


@asynccontextmanager
async def serving(app: ASGIApp, listening: socket.socket) -> AsyncIterator[str]:
    """The URL of the app, which is served until the end of the body; signals are the body's to handle."""
    started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    server = _Server(_config(app), lambda: started.set_result(None), takes_signals=False)
    task = asyncio.create_task(server.serve([listening]))
    try:
        await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
        yield url_of(listening)
    finally:
        server.should_exit = True
        await task


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"--host {host} is no address of this machine: {error}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; pass another --port, or 0 for any that is free"
        ) from error
    return listening


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Protocol,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=int(LAST_WORDS),
        backlog=WAITING_CONNECTIONS,
        timeout_keep_alive=IDLE_CONNECTIONS,
    )


class Protocol(HttpToolsProtocol):
    """uvicorn's own, but for bodies: it would copy each piece twice more, half of what receiving a group costs.

    And it would keep a head without end in memory, from whoever can connect.
    """

    _unheard = 0
    """Bytes since a head, a piece of a body or a request was whole."""

    def data_received(self, data: bytes) -> None:
        self._unheard += len(data)
        super().data_received(data)
        if self._unheard > LARGEST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"A head has {LARGEST_HEAD} bytes at most.")

    def on_headers_complete(self) -> None:
        self._unheard = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        if not self.cycle.body:
            self.cycle.body, body = body, b""  # type: ignore[assignment]
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unheard = 0
        super().on_message_complete()


class _Server(uvicorn.Server):
    """Tells when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], *, takes_signals: bool) -> None:
        super().__init__(config)
        self._ready = ready
        self._takes_signals = takes_signals

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Being told to end is no failure, so the signal is not raised again afterwards as uvicorn's own way is."""
        loop = asyncio.get_running_loop()
        taken = ENDING if self._takes_signals else ()
        for number in taken:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def url_of(listening: socket.socket) -> str:
    name, port = listening.getsockname()[:2]
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"

"""Runs an ASGI app on a socket with uvicorn: listening, allowed hosts, shutdown.

Always true: a server that other machines can reach has a token; `ready` is called once it listens; shutdown lets
in-flight requests finish.
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

from hermes_rl.core.errors import ConfigError

SHUTDOWN_SECONDS = 10.0
BACKLOG = 2048
# Longer than clients keep an idle connection (ours: 60 s), so that the client closes it first and no request is lost.
KEEP_ALIVE_SECONDS = 75
MAX_HEADERS = 64 * 1024
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def allowed_hosts(host: str, token: str | None, flag: str = "--token") -> frozenset[str] | None:
    """The Host headers that a server accepts; None, for any, when it has a token.

    ConfigError when other machines could reach it without a token.
    """
    if token is not None:
        return None
    if not is_loopback(host):
        raise ConfigError(
            f"other machines can reach {host}; require a token with {flag} env:NAME (or file:PATH), or use 127.0.0.1"
        )
    bracketed = f"[{host}]" if ":" in host else host
    return frozenset({"localhost", "127.0.0.1", "[::1]", bracketed.lower()})


async def serve(app: ASGIApp, listening: socket.socket, *, ready: Callable[[str], None]) -> None:
    """Serve until a signal; `ready` is called with the URL."""
    await _Server(_config(app), lambda: ready(socket_url(listening)), handle_signals=True).serve([listening])


@asynccontextmanager
async def serve_in_background(app: ASGIApp, listening: socket.socket) -> AsyncIterator[str]:
    """Serve the app until the end of the block; gives its URL and leaves signals to the block."""
    started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    server = _Server(_config(app), lambda: started.set_result(None), handle_signals=False)
    task = asyncio.create_task(server.serve([listening]))
    try:
        await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
        yield socket_url(listening)
    finally:
        server.should_exit = True
        await task


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"--host {host} is not an address of this machine: {error}") from error
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
        timeout_graceful_shutdown=int(SHUTDOWN_SECONDS),
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol with two fixes.

    It copies each chunk of a body twice less, which halves the cost of receiving a group, and it limits the size of
    the headers, which uvicorn would buffer without end.
    """

    _unparsed = 0
    """Bytes since the last complete headers, body chunk or request."""

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEADERS and not self.transport.is_closing():
            self.send_400_response(f"The headers exceed {MAX_HEADERS} bytes.")

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if not self.cycle.body:
            self.cycle.body, body = body, b""  # type: ignore[assignment]
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        super().on_message_complete()


class _Server(uvicorn.Server):
    """Calls `ready` when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], *, handle_signals: bool) -> None:
        super().__init__(config)
        self._ready = ready
        self._handle_signals = handle_signals

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn, does not raise the signal again afterwards: a requested stop is not a failure."""
        loop = asyncio.get_running_loop()
        signals = STOP_SIGNALS if self._handle_signals else ()
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def socket_url(listening: socket.socket) -> str:
    name, port = listening.getsockname()[:2]
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"

"""Runs an ASGI app on a socket with uvicorn: listening, allowed hosts, limits of connections, shutdown.

Always true: a server that other machines can reach has a token; `ready` is called once it listens; shutdown lets
in-flight requests finish; clients that do not finish their requests cannot keep others out.
"""

import asyncio
import ipaddress
import signal
import socket
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from hermes_rl.core.errors import ConfigError
from hermes_rl.http.connections import (
    ConnectionLimits,
    Connections,
    Phase,
    address_key,
    listen_backlog,
    raise_file_limit,
)
from hermes_rl.http.errors import Problem

SHUTDOWN_SECONDS = 10.0
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


async def serve(
    app: ASGIApp, listening: socket.socket, *, ready: Callable[[str], None], limits: ConnectionLimits | None = None
) -> None:
    """Serve until a signal; `ready` is called with the URL."""
    config = _config(app, limits)
    await _Server(config, lambda: ready(socket_url(listening)), handle_signals=True).serve([listening])


@asynccontextmanager
async def serve_in_background(
    app: ASGIApp, listening: socket.socket, *, limits: ConnectionLimits | None = None
) -> AsyncIterator[str]:
    """Serve the app until the end of the block; gives its URL and leaves signals to the block."""
    started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    server = _Server(_config(app, limits), lambda: started.set_result(None), handle_signals=False)
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


def _config(app: ASGIApp, limits: ConnectionLimits | None) -> uvicorn.Config:
    raise_file_limit()
    return uvicorn.Config(
        app,
        # uvicorn only calls it.
        http=cast("type[asyncio.Protocol]", partial(Protocol, open_connections=Connections(limits))),
        # An upgraded connection would leave its place in the limits.
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=int(SHUTDOWN_SECONDS),
        backlog=listen_backlog(),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol with three fixes.

    It copies each chunk of a body twice less, which halves the cost of receiving a group. It limits the size of the
    headers, which uvicorn would buffer without end. Its place among `open_connections` limits how many connections
    there are and how slowly a request may arrive, which uvicorn would wait for without end.
    """

    _unparsed = 0
    """Bytes since the last complete headers, body chunk or request."""

    def __init__(self, *, open_connections: Connections, client_key: Hashable | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._open = open_connections
        self.client_key = client_key

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client_key is None:
            self.client_key = address_key(self.client[0] if self.client else None)
        self._open.opened(self, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._open.received(self, len(data), self.loop.time())
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MAX_HEADERS and not self.transport.is_closing():
            self.send_400_response(f"The headers exceed {MAX_HEADERS} bytes.")

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._open.enter(self, Phase.BODY, self.loop.time())
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if not self.cycle.body:
            self.cycle.body, body = body, b""  # type: ignore[assignment]
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        exchange = self._exchange
        answered = exchange is not None and exchange.response_complete
        self._open.enter(self, Phase.IDLE if answered else Phase.RESPONSE, self.loop.time())
        super().on_message_complete()

    def on_response_complete(self) -> None:
        # With more of the body to come, the response was early: the body's limits still hold.
        if not self.pipeline and not self.cycle.more_body:
            self._open.enter(self, Phase.IDLE, self.loop.time())
        super().on_response_complete()

    @property
    def _exchange(self) -> RequestResponseCycle | None:
        """The newest request and its response; None before the first."""
        return self.cycle

    def waits_for_us(self) -> bool:
        exchange = self._exchange
        return self.flow.read_paused or (exchange is not None and exchange.waiting_for_100_continue)

    def end(self, status: int, problem: Problem | None) -> None:
        if self.transport.get_write_buffer_size():
            # A client that does not read would keep a closing connection open.
            self.transport.abort()
            return
        last = self._exchange
        # After a complete exchange this is about the next request.
        may_answer = last is None or not last.response_started or (last.response_complete and not last.more_body)
        if problem is not None and may_answer:
            body = problem.model_dump_json().encode()
            head = b"content-type: application/json\r\ncontent-length: %d\r\nretry-after: 1\r\n" % len(body)
            self.transport.write(b"".join((STATUS_LINE[status], head, b"connection: close\r\n\r\n", body)))
        self.transport.close()


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

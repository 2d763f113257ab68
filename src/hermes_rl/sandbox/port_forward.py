"""Port forwarding: a port on the sandbox's loopback whose connections lead to our endpoint and nowhere else.

Always true: the connections are multiplexed over a command's stdin and stdout, so they need no network, no host file
inside the sandbox and no support from the backend. Forwarding ends with its block. Processes in the sandbox can break
it only for themselves: their bytes reach only that endpoint, and each connection buffers at most one window here.
`port_forward.pl` is the other end and documents the frames.
"""

import asyncio
import contextlib
import shlex
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any, TypeAlias

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.protocol import INTERNAL_ENV, Command, ExecResult, Sandbox

Connect: TypeAlias = Callable[[], Awaitable[socket.socket]]
"""Opens a connection to the endpoint and returns our end of it; OSError if that fails."""

START_TIMEOUT = 30.0
PROGRAM = resources.files("hermes_rl.sandbox").joinpath("port_forward.pl").read_text()

_HEADER = struct.Struct("!cII")
_CHUNK = 64 * 1024
# Our own relay never has more than this unacknowledged on one connection.
_WINDOW = 1024 * 1024
_MAX_CONNECTIONS = 512
# Bytes queued for the sandbox before readers are paused.
_MAX_QUEUED = 1024 * 1024
# Total output of all connections of one sandbox.
_MAX_BYTES = 8 * 1024**3


@asynccontextmanager
async def forward_port(sandbox: Sandbox, connect: Connect, *, lifetime: float) -> AsyncIterator["PortForward"]:
    """Forward connections to `127.0.0.1:forward.port` in the sandbox to `connect()` while the block runs."""
    forward = PortForward(connect)
    script = f"exec perl -e {shlex.quote(PROGRAM)}"
    command = Command(
        script, lifetime, cwd="/", env=INTERNAL_ENV, stdin=forward.input(), max_output=_MAX_BYTES, sink=forward.feed
    )
    relay = asyncio.ensure_future(sandbox.run(command))
    relay.add_done_callback(lambda _: forward.close())
    try:
        await _wait_until_listening(forward, relay)
        yield forward
    finally:
        forward.close()
        relay.cancel()
        await asyncio.gather(relay, forward.wait_closed(), return_exceptions=True)


class PortForward:
    """The host's end for one sandbox. `unreachable` is the last error of `connect`, if any."""

    def __init__(self, connect: Connect) -> None:
        self.port = 0
        self.connect = connect
        self.unreachable: OSError | None = None
        self.listening = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()
        self._connections: dict[int, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._received = bytearray()
        self._outgoing = bytearray()
        self._waiting = asyncio.Event()
        self._closed = False

    async def input(self) -> AsyncIterator[bytes]:
        """The frames for the sandbox, as they are queued."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            if self._closed:
                return
            data = bytes(self._outgoing)
            self._outgoing.clear()
            self.room.set()
            yield data

    def feed(self, data: bytes) -> None:
        """Handle bytes from the sandbox. Malformed frames end the forwarding."""
        self._received += data
        while not self._closed and len(self._received) >= _HEADER.size:
            kind, number, length = _HEADER.unpack_from(self._received)
            if length > _CHUNK:
                self.close()
                return
            end = _HEADER.size + length
            if len(self._received) < end:
                return
            payload = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            self._handle_frame(kind, number, payload)

    def send(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        """Queue a frame for the sandbox. `room` is cleared while the queue is full."""
        self._outgoing += _HEADER.pack(kind, number, len(payload)) + payload
        self._waiting.set()
        if len(self._outgoing) > _MAX_QUEUED:
            self.room.clear()

    def close(self) -> None:
        self._closed = True
        self._waiting.set()
        self._received.clear()
        self._connections.clear()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait, after `close`, until no connection is left."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _handle_frame(self, kind: bytes, number: int, payload: bytes) -> None:
        connection = self._connections.get(number)
        if kind == b"D" and connection is not None:
            connection.feed(payload)
        elif kind == b"X" and connection is not None:
            del self._connections[number]
            connection.task.cancel()
        elif kind == b"O" and connection is None and len(self._tasks) < _MAX_CONNECTIONS:
            self._connections[number] = connection = _Connection(self, number)
            connection.task = asyncio.ensure_future(self._relay(connection))
            self._tasks.add(connection.task)
            connection.task.add_done_callback(self._tasks.discard)
        elif kind == b"L" and len(payload) == 2 and not self.listening.is_set():
            self.port = int.from_bytes(payload)
            self.listening.set()
        elif kind not in b"DX":
            self.close()

    async def _relay(self, connection: "_Connection") -> None:
        try:
            await connection.relay()
        except OSError as error:
            self.unreachable = error
        finally:
            if self._connections.pop(connection.number, None) is not None:
                self.send(b"X", connection.number)


class _Connection:
    """Our side of one connection.

    Reading continues after writing fails: a server may reply and close before it has read the whole request.
    """

    task: "asyncio.Task[None]"

    def __init__(self, forward: PortForward, number: int) -> None:
        self.number = number
        self._forward = forward
        self._pending = bytearray()
        self._has_data = asyncio.Event()

    def feed(self, data: bytes) -> None:
        self._pending += data
        self._has_data.set()
        if len(self._pending) > _WINDOW:
            self.task.cancel()

    async def relay(self) -> None:
        """Copy in both directions until the endpoint closes; OSError if it cannot be reached."""
        with await self._forward.connect() as endpoint:
            endpoint.setblocking(False)
            writing = asyncio.ensure_future(self._write(endpoint))
            try:
                await self._read(endpoint)
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

    async def _read(self, endpoint: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(endpoint, _CHUNK):
                self._forward.send(b"D", self.number, data)
                await self._forward.room.wait()

    async def _write(self, endpoint: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        write_failed = False
        while True:
            await self._has_data.wait()
            self._has_data.clear()
            data = bytes(self._pending)
            if not write_failed:
                try:
                    await loop.sock_sendall(endpoint, data)
                except OSError:
                    write_failed = True
            del self._pending[: len(data)]
            if self._pending:
                self._has_data.set()
            self._forward.send(b"W", self.number, len(data).to_bytes(4))


async def _wait_until_listening(forward: PortForward, relay: "asyncio.Future[ExecResult]") -> None:
    listening = asyncio.ensure_future(forward.listening.wait())
    try:
        either: list[asyncio.Future[Any]] = [listening, relay]
        await asyncio.wait(either, timeout=START_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    finally:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
    if forward.port:
        return
    if not relay.done():
        raise SandboxError("hang", f"the port forward to the gateway was not open after {START_TIMEOUT:.0f} s")
    stderr = relay.result().stderr.decode(errors="replace").strip()
    raise SandboxError("start", f"cannot open the port forward to the gateway: {stderr or 'perl exited immediately'}")

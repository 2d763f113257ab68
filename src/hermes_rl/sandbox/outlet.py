"""An outlet: a port on a sandbox's own loopback whose connections are ones of ours, to one place and to no other.

Always true: it travels on the stream that already carries the sandbox's commands, so it needs no network, no file of
the host's inside and nothing of a backend; it ends with its block. What runs in the sandbox can break it, for itself
only: its bytes reach nobody but that place, and no more of them wait here than a window for each connection.
`outlet.pl` is the other end and describes the frames.
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

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.protocol import OUR_ENV, Command, ExecResult, Sandbox

Connect: TypeAlias = Callable[[], Awaitable[socket.socket]]
"""Makes a connection to where an outlet leads: our end of it. OSError when it cannot be made."""

START_TIMEOUT = 30.0
PROGRAM = resources.files("hermes_rl.sandbox").joinpath("outlet.pl").read_text()

_HEADER = struct.Struct("!cII")
_PIECE = 64 * 1024
# More than this of one connection, not yet taken on our side, cannot come from the program that we started.
_WINDOW = 1024 * 1024
_MOST_LINES = 512
# On its way into the sandbox, before further answers are left waiting.
_HIGH = 1024 * 1024
# What all connections may bring out of one sandbox.
_MOST_BYTES = 8 * 1024**3


@asynccontextmanager
async def outlet(sandbox: Sandbox, connect: Connect, *, lifetime: float) -> AsyncIterator["Outlet"]:
    """Within this block whoever connects to `127.0.0.1:outlet.port` in the sandbox has one of `connect`'s here."""
    opened = Outlet(connect)
    script = f"exec perl -e {shlex.quote(PROGRAM)}"
    command = Command(
        script, lifetime, cwd="/", env=OUR_ENV, stdin=opened.input(), max_output=_MOST_BYTES, sink=opened.feed
    )
    relay = asyncio.ensure_future(sandbox.run(command))
    relay.add_done_callback(opened.relay_ended)
    try:
        await _listening(opened, relay)
        yield opened
    finally:
        opened.close()
        relay.cancel()
        await asyncio.gather(relay, opened.ended(), return_exceptions=True)


class Outlet:
    """One sandbox's outlet. `unreachable` says why a connection could not be made on our side, when one could not."""

    def __init__(self, connect: Connect) -> None:
        self.port = 0
        self.connect = connect
        self.unreachable: OSError | None = None
        self.listening = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()
        self._lines: dict[int, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._received = bytearray()
        self._outgoing = bytearray()
        self._waiting = asyncio.Event()
        self._closed = False

    async def input(self) -> AsyncIterator[bytes]:
        """What goes into the sandbox, as it comes."""
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
        """What came out of the sandbox; what our program would not send ends the outlet."""
        self._received += data
        while not self._closed and len(self._received) >= _HEADER.size:
            kind, number, length = _HEADER.unpack_from(self._received)
            if length > _PIECE:
                self.close()
                return
            end = _HEADER.size + length
            if len(self._received) < end:
                return
            payload = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            self._heed(kind, number, payload)

    def send(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        """A frame into the sandbox; `room` says whether there is room for more."""
        self._outgoing += _HEADER.pack(kind, number, len(payload)) + payload
        self._waiting.set()
        if len(self._outgoing) > _HIGH:
            self.room.clear()

    def relay_ended(self, _: "asyncio.Future[ExecResult]") -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._waiting.set()
        self._received.clear()
        self._lines.clear()
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Wait until no connection is left, after `close`."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _heed(self, kind: bytes, number: int, payload: bytes) -> None:
        line = self._lines.get(number)
        if kind == b"D" and line is not None:
            line.tell(payload)
        elif kind == b"X" and line is not None:
            del self._lines[number]
            line.hang_up()
        elif kind == b"O" and line is None and len(self._tasks) < _MOST_LINES:
            self._lines[number] = line = _Line(self, number)
            line.task = asyncio.ensure_future(self._carried(line))
            self._tasks.add(line.task)
            line.task.add_done_callback(self._tasks.discard)
        elif kind == b"L" and len(payload) == 2 and not self.listening.is_set():
            self.port = int.from_bytes(payload)
            self.listening.set()
        elif kind not in b"DX":
            self.close()

    async def _carried(self, line: "_Line") -> None:
        try:
            await line.carry()
        except OSError as error:
            self.unreachable = error
        finally:
            if self._lines.pop(line.number, None) is not None:
                self.send(b"X", line.number)


class _Line:
    """Our side of one connection.

    Reading goes on when writing is over: whoever answers and closes before all was sent is heard out.
    """

    task: "asyncio.Task[None]"

    def __init__(self, outlet: Outlet, number: int) -> None:
        self.number = number
        self._outlet = outlet
        self._pending = bytearray()
        self._told = asyncio.Event()

    def tell(self, data: bytes) -> None:
        """Bytes from the sandbox."""
        self._pending += data
        self._told.set()
        if len(self._pending) > _WINDOW:
            self.hang_up()

    def hang_up(self) -> None:
        self.task.cancel()

    async def carry(self) -> None:
        """Both ways, until the other side ends; OSError when it cannot be reached."""
        with await self._outlet.connect() as line:
            line.setblocking(False)
            writing = asyncio.ensure_future(self._write(line))
            try:
                await self._read(line)
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

    async def _read(self, line: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(line, _PIECE):
                self._outlet.send(b"D", self.number, data)
                await self._outlet.room.wait()

    async def _write(self, line: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        deaf = False
        while True:
            await self._told.wait()
            self._told.clear()
            data = bytes(self._pending)
            if not deaf:
                try:
                    await loop.sock_sendall(line, data)
                except OSError:
                    deaf = True
            del self._pending[: len(data)]
            if self._pending:
                self._told.set()
            self._outlet.send(b"W", self.number, len(data).to_bytes(4))


async def _listening(opened: Outlet, relay: "asyncio.Future[ExecResult]") -> None:
    listening = asyncio.ensure_future(opened.listening.wait())
    try:
        either: list[asyncio.Future[Any]] = [listening, relay]
        await asyncio.wait(either, timeout=START_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    finally:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
    if opened.port:
        return
    if not relay.done():
        raise SandboxError("hang", f"the sandbox's way to the gateway was not open after {START_TIMEOUT:.0f} s")
    said = relay.result().stderr.decode(errors="replace").strip()
    raise SandboxError("start", f"the sandbox's way to the gateway cannot be opened: {said or 'perl ended at once'}")

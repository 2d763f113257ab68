"""A warden that is a process of this machine: started here, reached over one pair of sockets.

Always true: only our process holds our end, so the warden reads the end of its input, and ends, when we close or die.
"""

import asyncio
import os
import socket
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, cast

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.child import Child, to_the_end
from hermes_rl.sandbox.warden import Warden

_END_TIME = 5.0
_LONGEST_COMPLAINT = 4096
# A worker that our process forks must not hold these when we die.
_ours: set[int] = set()


def _close_ours() -> None:
    for fd in _ours:
        os.close(fd)
    _ours.clear()


os.register_at_fork(after_in_child=_close_ours)


class PipedWarden(asyncio.Protocol):
    """The process, its socket and the warden behind it. `settings` are for the warden's greeting."""

    def __init__(self) -> None:
        self.warden = Warden()
        self._child: Child | None = None
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._fd = -1
        self._writable = asyncio.Event()
        self._writable.set()
        self._complaint: int | None = None

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

    @property
    def exited(self) -> bool:
        return self._child is not None and self._child.exited.is_set()

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        settings: Mapping[str, str],
        gate: asyncio.Lock,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start it and wait until it answers; SandboxError, with what it said, when it ends instead."""
        ours, theirs = socket.socketpair()
        self._complaint, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        ours.setblocking(False)
        self._socket = ours
        self._fd = ours.fileno()
        _ours.add(self._fd)
        try:
            fds = [theirs.fileno(), theirs.fileno(), said]
            # Never cancelled half way: a process whose number we do not know could not be killed.
            await to_the_end(self._spawn(Child.start(argv, env, fds, gate, pass_fds)))
        finally:
            theirs.close()
            os.close(said)
        await to_the_end(asyncio.get_running_loop().create_connection(lambda: self, sock=ours))
        self.warden.connect(self, settings)
        try:
            await self.warden.ready
        except SandboxError:
            raise SandboxError("start", self._complaints() or "it ended without a message") from None
        self._forget_complaints()

    async def _spawn(self, starting: Coroutine[Any, Any, Child]) -> None:
        self._child = await starting

    async def close(self) -> None:
        """End the warden, and with it everything inside: by the end of its input, or by force when that is late."""
        self.warden.lost("the sandbox was closed")
        self._forget_complaints()
        _ours.discard(self._fd)
        if self._transport is not None:
            self._transport.abort()
        elif self._socket is not None:
            self._socket.close()
        if self._child is None:
            return
        for _ in range(2):
            try:
                async with asyncio.timeout(_END_TIME):
                    await self._child.exited.wait()
                    return
            except TimeoutError:
                self._child.kill()

    # --- what Warden writes to ---

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        await self._writable.wait()

    # --- what the loop tells us ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.warden.feed(data)

    def eof_received(self) -> None:
        self.warden.lost("the sandbox's first process is gone, and all others with it")

    def connection_lost(self, exc: Exception | None) -> None:
        # Its number may be another file's from now on.
        _ours.discard(self._fd)
        self.warden.lost("the sandbox's first process is gone, and all others with it")
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _complaints(self) -> str:
        try:
            return os.read(self._complaint or 0, _LONGEST_COMPLAINT).decode(errors="replace").strip()
        except BlockingIOError:
            return ""

    def _forget_complaints(self) -> None:
        if self._complaint is not None:
            os.close(self._complaint)
            self._complaint = None

"""Transport to a guest agent that is a process of this machine, over a socket pair.

Always true: only our process holds our end, so the guest agent reads end of input, and exits, when we close it or die.
"""

import asyncio
import os
import socket
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.guest_agent.client import GuestAgentClient
from hermes_rl.sandbox.subprocess_vfork import Child, shield_until_done

_END_TIME = 5.0
_MAX_STDERR = 4096
# A forked worker must not hold these open after we die.
_open_fds: set[int] = set()


def _close_in_child() -> None:
    for fd in _open_fds:
        os.close(fd)
    _open_fds.clear()


os.register_at_fork(after_in_child=_close_in_child)


class SocketTransport(asyncio.Protocol):
    """The process, its socket and its guest agent."""

    def __init__(self) -> None:
        self.guest = GuestAgentClient()
        self._child: Child | None = None
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._fd = -1
        self._writable = asyncio.Event()
        self._writable.set()
        self._stderr: int | None = None

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
        """Start the process and wait until it replies; SandboxError with its stderr if it exits instead."""
        ours, theirs = socket.socketpair()
        self._stderr, stderr_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        ours.setblocking(False)
        self._socket = ours
        self._fd = ours.fileno()
        _open_fds.add(self._fd)
        try:
            fds = [theirs.fileno(), theirs.fileno(), stderr_write]
            # Never cancelled half way: a process whose pid we do not know cannot be killed.
            await shield_until_done(self._spawn(Child.start(argv, env, fds, gate, pass_fds)))
        finally:
            theirs.close()
            os.close(stderr_write)
        await shield_until_done(asyncio.get_running_loop().create_connection(lambda: self, sock=ours))
        self.guest.connect(self, settings)
        try:
            await self.guest.ready
        except SandboxError:
            raise SandboxError("start", self._read_stderr() or "it exited without a message") from None
        self._close_stderr()

    async def _spawn(self, starting: Coroutine[Any, Any, Child]) -> None:
        self._child = await starting

    async def wait_exited(self, seconds: float) -> int | None:
        """The exit code of the process, as in a shell; None if it still runs after that time."""
        if self._child is None:
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._child.exited.wait()
        return self._child.exit_code if self._child.exited.is_set() else None

    async def close(self) -> None:
        """End the guest agent and all processes inside: by closing its input, or by a kill if that takes too long."""
        self.guest.mark_lost("the sandbox was closed")
        self._close_stderr()
        _open_fds.discard(self._fd)
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

    # --- Transport ---

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        await self._writable.wait()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.guest.feed(data)

    def eof_received(self) -> None:
        self.guest.mark_lost("the sandbox's first process is gone, and all others with it")

    def connection_lost(self, exc: Exception | None) -> None:
        # The descriptor may be reused from now on.
        _open_fds.discard(self._fd)
        self.guest.mark_lost("the sandbox's first process is gone, and all others with it")
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _read_stderr(self) -> str:
        try:
            return os.read(self._stderr or 0, _MAX_STDERR).decode(errors="replace").strip()
        except BlockingIOError:
            return ""

    def _close_stderr(self) -> None:
        if self._stderr is not None:
            os.close(self._stderr)
            self._stderr = None

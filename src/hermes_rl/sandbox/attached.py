"""A warden that is the first process of a container, reached over the attach stream of docker or podman.

Always true: only our process holds our end of the stream. When we close it or die, the engine ends the container's
input, the warden ends, and the engine removes the container.
"""

import asyncio
import contextlib
import os
import weakref
from collections.abc import Mapping

import aiohttp
from aiodocker.containers import DockerContainer
from aiodocker.stream import Stream

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.warden import Outgoing, Warden

_LONGEST_COMPLAINT = 4096
_STDERR = 2
_GONE = "the container is gone: it was killed, or its engine was stopped"


class AttachedWarden(Outgoing):
    """The stream, and the warden behind it. `attach` comes before the container is started, `greet` after."""

    def __init__(self) -> None:
        super().__init__()
        self.warden = Warden()
        self._stream: Stream | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._complaints = bytearray()

    async def attach(self, container: DockerContainer) -> None:
        self._stream = stream = container.attach(stdin=True, stdout=True, stderr=True)
        await stream.__aenter__()
        _ours.add(self)
        self._tasks = [asyncio.create_task(self._read(stream)), asyncio.create_task(self._write(stream))]

    async def greet(self, settings: Mapping[str, str]) -> None:
        """Wait until it answers; SandboxError, with what it said, when it ends instead."""
        self.warden.connect(self, settings)
        try:
            await self.warden.ready
        except SandboxError:
            said = self._complaints.decode(errors="replace").strip()
            raise SandboxError("start", said or "its first process ended without a message") from None

    async def close(self) -> None:
        """End the stream, and with it the container's input."""
        self.warden.lost("the sandbox was closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        _ours.discard(self)
        if self._stream is not None:
            # aiodocker asserts that there is a connection, which a cancelled `attach` may not have had.
            with contextlib.suppress(AssertionError):
                await self._stream.close()

    # --- the two directions ---

    async def _write(self, stream: Stream) -> None:
        # AssertionError is all that aiodocker says of a stream that the engine has closed.
        with contextlib.suppress(AssertionError, RuntimeError, OSError, aiohttp.ClientError):
            while True:
                await self._waiting.wait()
                self._waiting.clear()
                data = bytes(self._outgoing)
                self._outgoing.clear()
                await stream.write_in(data)
                self._room.set()
        self._lost()

    async def _read(self, stream: Stream) -> None:
        with contextlib.suppress(OSError, aiohttp.ClientError):
            while (message := await stream.read_out()) is not None:
                if message.stream == _STDERR:
                    self._complaints += message.data[: _LONGEST_COMPLAINT - len(self._complaints)]
                else:
                    self.warden.feed(message.data)
        self._lost()

    def _lost(self) -> None:
        self.warden.lost(_GONE)
        self._room.set()

    def descriptor(self) -> int | None:
        """Our end of the stream."""
        response = self._stream._resp if self._stream is not None else None  # noqa: SLF001 - aiodocker shows it nowhere
        connection = response.connection if response is not None else None
        if connection is None or connection.transport is None:
            return None
        fd: int = connection.transport.get_extra_info("socket").fileno()
        return fd


# A worker that our process forks must not hold these when we die.
_ours: "weakref.WeakSet[AttachedWarden]" = weakref.WeakSet()


def _close_ours() -> None:
    for one in tuple(_ours):
        fd = one.descriptor()
        if fd is not None and fd >= 0:
            os.close(fd)
    _ours.clear()


os.register_at_fork(after_in_child=_close_ours)

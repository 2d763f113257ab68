"""Transport to the guest agent in a docker or podman container, over the container's attach stream.

Always true: only our process holds our end of the stream. When we close it or die, the engine closes the container's
stdin, the guest agent exits, and the engine removes the container.
"""

import asyncio
import contextlib
import os
import weakref
from collections.abc import Mapping

import aiohttp
from aiodocker.containers import DockerContainer
from aiodocker.stream import Stream

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.guest_agent.client import GuestAgentClient, QueuedTransport

_MAX_STDERR = 4096
_STDERR = 2
_GONE = "the container is gone: it was killed, or its engine was stopped"


class AttachTransport(QueuedTransport):
    """The stream and its guest agent. Call `attach` before the container is started, `connect_guest` after."""

    def __init__(self) -> None:
        super().__init__()
        self.guest = GuestAgentClient()
        self._stream: Stream | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stderr = bytearray()

    async def attach(self, container: DockerContainer) -> None:
        self._stream = stream = container.attach(stdin=True, stdout=True, stderr=True)
        await stream.__aenter__()
        _open_streams.add(self)
        self._tasks = [asyncio.create_task(self._read(stream)), asyncio.create_task(self._write(stream))]

    async def connect_guest(self, settings: Mapping[str, str]) -> None:
        """Wait until the guest agent replies; SandboxError with its stderr if it exits instead."""
        self.guest.connect(self, settings)
        try:
            await self.guest.ready
        except SandboxError:
            stderr = self._stderr.decode(errors="replace").strip()
            raise SandboxError("start", stderr or "its first process ended without a message") from None

    async def close(self) -> None:
        """Close the stream, and with it the container's stdin."""
        self.guest.mark_lost("the sandbox was closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        _open_streams.discard(self)
        if self._stream is not None:
            # aiodocker asserts that there is a connection; a cancelled `attach` may not have one.
            with contextlib.suppress(AssertionError):
                await self._stream.close()

    # --- the two directions ---

    async def _write(self, stream: Stream) -> None:
        # aiodocker raises AssertionError for a stream that the engine has closed.
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
                    self._stderr += message.data[: _MAX_STDERR - len(self._stderr)]
                else:
                    self.guest.feed(message.data)
        self._lost()

    def _lost(self) -> None:
        self.guest.mark_lost(_GONE)
        self._room.set()

    def descriptor(self) -> int | None:
        response = self._stream._resp if self._stream is not None else None  # noqa: SLF001 - aiodocker has no public access
        connection = response.connection if response is not None else None
        if connection is None or connection.transport is None:
            return None
        fd: int = connection.transport.get_extra_info("socket").fileno()
        return fd


# A forked worker must not hold these open after we die.
_open_streams: "weakref.WeakSet[AttachTransport]" = weakref.WeakSet()


def _close_in_child() -> None:
    for transport in tuple(_open_streams):
        fd = transport.descriptor()
        if fd is not None and fd >= 0:
            os.close(fd)
    _open_streams.clear()


os.register_at_fork(after_in_child=_close_in_child)

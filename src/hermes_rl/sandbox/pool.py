"""The pool: bounds how many sandboxes live and how many are being started, and closes every one it handed out."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.commands import to_the_end
from hermes_rl.sandbox.protocol import Backend, Sandbox

_log = logging.getLogger(__name__)


class SandboxPool:
    """Sandboxes of one backend. `close_failures` counts those whose close raised."""

    def __init__(self, backend: Backend, *, max_live: int = 64, max_starting: int = 8) -> None:
        self.backend = backend
        self.close_failures = 0
        self._places = asyncio.Semaphore(max_live)
        self._starts = asyncio.Semaphore(max_starting)
        self._live: set[Sandbox] = set()
        self._closed = False

    @property
    def live(self) -> int:
        return len(self._live)

    @asynccontextmanager
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        sandbox = await self.acquire()
        try:
            yield sandbox
        finally:
            await self.release(sandbox)

    async def acquire(self) -> Sandbox:
        """A new sandbox, once there is a place for it."""
        await self._places.acquire()
        try:
            async with self._starts:
                self._require_open()
                sandbox = await self.backend.start()
        except BaseException:
            self._places.release()
            raise
        self._live.add(sandbox)
        if self._closed:
            await self.release(sandbox)
            self._require_open()
        return sandbox

    async def release(self, sandbox: Sandbox) -> None:
        """Close a sandbox and give its place back. Releasing twice is harmless; a failing close is logged."""
        if sandbox in self._live:
            self._live.remove(sandbox)
            await to_the_end(self._end(sandbox))

    async def close(self) -> None:
        """Close everything still open; nothing can be acquired afterwards."""
        self._closed = True
        await asyncio.gather(*(self.release(sandbox) for sandbox in tuple(self._live)))

    async def _end(self, sandbox: Sandbox) -> None:
        try:
            await sandbox.close()
        except Exception:  # noqa: BLE001 - whatever a backend raises, the place is given back
            self.close_failures += 1
            _log.exception("a sandbox of the backend %s could not be closed", self.backend.name)
        finally:
            self._places.release()

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("closed", "the sandbox pool was closed")

"""The pool: bounds how many sandboxes live and how many are being started, and closes every one it handed out.

A start that fails for a reason of the world's is tried again, on another place if there are several: a place is one
backend, on one machine or account. Sandboxes for verification have room of their own, or rollouts that all wait to be
verified would wait for each other.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hermes_rl import tracing
from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.child import to_the_end
from hermes_rl.sandbox.protocol import Backend, Sandbox
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec

_log = logging.getLogger(__name__)

START_ATTEMPTS = 3
_PAUSE = 0.2
# How long a place that failed is left alone while others do their work.
_REST = 30.0


@dataclass(slots=True)
class _Place:
    backend: Backend
    live: int = 0
    rests_until: float = 0.0


class SandboxPool:
    """Sandboxes of one kind. `start_failures` counts by cause the starts that were tried again or given up."""

    def __init__(
        self,
        backend: Backend | Sequence[Backend],
        *,
        max_live: int = 64,
        max_starting: int = 8,
        start_timeout: float = 120.0,
    ) -> None:
        self._all = [_Place(one) for one in (backend if isinstance(backend, Sequence) else [backend])]
        self.close_failures = 0
        self.start_failures: Counter[str] = Counter()
        self._start_timeout = start_timeout
        self._rooms = {False: asyncio.Semaphore(max_live), True: asyncio.Semaphore(max(max_live // 4, 1))}
        self._starts = asyncio.Semaphore(max_starting)
        self._live: dict[Sandbox, tuple[_Place, bool]] = {}
        self._closed = False

    @property
    def backend(self) -> Backend:
        return self._all[0].backend

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    @property
    def live(self) -> int:
        return len(self._live)

    @asynccontextmanager
    async def sandbox(self, spec: SandboxSpec | None = None, *, verifying: bool = False) -> AsyncIterator[Sandbox]:
        sandbox = await self.acquire(spec, verifying=verifying)
        try:
            yield sandbox
        finally:
            await self.release(sandbox)

    async def acquire(self, spec: SandboxSpec | None = None, *, verifying: bool = False) -> Sandbox:
        """A new sandbox, once there is room for it. SandboxError when none could be had after several attempts."""
        with tracing.span("sandbox") as span:
            began = time.monotonic()
            await self._rooms[verifying].acquire()
            if span.on:
                waited, image = time.monotonic() - began, spec.image if spec else None
                span.note(backend=self.backend.name, verifying=verifying, waited_seconds=waited, image=image)
            try:
                sandbox, place = await self._start(spec)
            except BaseException:
                self._rooms[verifying].release()
                raise
        place.live += 1
        self._live[sandbox] = (place, verifying)
        if self._closed:
            await self.release(sandbox)
            self._require_open()
        return sandbox

    async def release(self, sandbox: Sandbox) -> None:
        """Close a sandbox and give its room back. Releasing twice is harmless; a failing close is logged."""
        if sandbox in self._live:
            place, verifying = self._live.pop(sandbox)
            await to_the_end(self._end(sandbox, place, self._rooms[verifying]))

    async def close(self) -> None:
        """Close everything still open; nothing can be acquired afterwards."""
        self._closed = True
        await asyncio.gather(*(self.release(sandbox) for sandbox in tuple(self._live)))

    async def _start(self, spec: SandboxSpec | None) -> tuple[Sandbox, _Place]:
        for attempt in range(1, START_ATTEMPTS + 1):
            async with self._starts:
                self._require_open()
                place = self._choose()
                try:
                    return await self._start_in_time(place.backend, spec), place
                except SandboxError as error:
                    self.start_failures[error.cause] += 1
                    place.rests_until = time.monotonic() + _REST
                    if attempt == START_ATTEMPTS:
                        raise
                    _log.info("a sandbox of %s could not start, trying again: %s", place.backend.name, error)
            await asyncio.sleep(_PAUSE * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _start_in_time(self, backend: Backend, spec: SandboxSpec | None) -> Sandbox:
        try:
            async with asyncio.timeout(self._start_timeout):
                return await backend.start(spec)
        except TimeoutError:
            raise SandboxError(
                "start_timeout", f"a sandbox of {backend.name} was not ready after {self._start_timeout:g} s"
            ) from None

    def _choose(self) -> _Place:
        """The place with the fewest sandboxes among those that did not fail lately, else among all."""
        now = time.monotonic()
        well = [place for place in self._all if place.rests_until <= now]
        return min(well or self._all, key=lambda place: place.live)

    async def _end(self, sandbox: Sandbox, place: _Place, room: asyncio.Semaphore) -> None:
        try:
            await sandbox.close()
        except Exception:  # noqa: BLE001 - whatever a backend raises, the room is given back
            self.close_failures += 1
            _log.exception("a sandbox of the backend %s could not be closed", place.backend.name)
        finally:
            place.live -= 1
            room.release()

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("closed", "the sandbox pool was closed")

"""Gate: admits requests to one engine in FIFO order, as its concurrency limiter allows.

An admitted request counts as in flight until its outcome is reported. A request cancelled while it waits leaves no
trace. Nothing waits while nothing is in flight. When an engine is lost, every waiting request fails immediately.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from hermes_rl.inference.concurrency_limiter import AIMDLimiter


class EngineGoneError(Exception):
    """The engine is lost or was removed; the request should go to another endpoint."""


class Gate:
    """After `enter` returns, call exactly one of `answered`, `refused`, `lost` and `abandoned`."""

    def __init__(self, limiter: AIMDLimiter, clock: Callable[[], float] = time.monotonic) -> None:
        self.limiter = limiter
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def queued(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    async def enter(self) -> None:
        """Wait for room; EngineGoneError when the engine is lost meanwhile."""
        if not self._waiting and self.limiter.has_room:
            self.limiter.began(self._clock())
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                # `_admit` may have skipped it already.
                with suppress(ValueError):
                    self._waiting.remove(waiter)
            elif waiter.exception() is None:
                self.abandoned()
            raise

    def answered(self, work: float) -> None:
        self.limiter.answered(self._clock(), work)
        self._admit()

    def refused(self) -> None:
        self.limiter.refused(self._clock())
        self._admit()

    def lost(self) -> None:
        self.limiter.lost(self._clock())
        if self.limiter.is_lost:
            self.reject_waiting()
        self._admit()

    def abandoned(self) -> None:
        """The request was cancelled or invalid, which says nothing about the engine."""
        self.limiter.ended(self._clock())
        self._admit()

    def reject_waiting(self) -> None:
        """Fail every waiting request, so that it goes to another endpoint."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(EngineGoneError())

    def _admit(self) -> None:
        while self._waiting and self.limiter.has_room:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.limiter.began(self._clock())
                waiter.set_result(None)

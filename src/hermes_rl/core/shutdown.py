"""Graceful shutdown of a serving process, on a signal or for an internal reason, with a deadline from then on.

Always true: the first signal lets in-flight work finish, the second cancels it, the third has its default effect.
A signal outside `graceful`, such as during startup, counts as the second.
"""

import asyncio
import signal
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

SIGNALS = (signal.SIGTERM, signal.SIGINT)

T = TypeVar("T")


class Stopped(Exception):  # noqa: N818 (nothing is wrong)
    """A stop was requested before the work was done."""


class StopSignal:
    """A stop request. `reason` is None until there is one; `seconds` is the time to finish after it."""

    def __init__(self, seconds: float) -> None:
        self.reason: str | None = None
        self.signals = 0
        self._seconds, self._end = seconds, float("inf")
        self._requested = asyncio.Event()
        self._graceful = False

    def request(self, reason: str) -> None:
        """Request a stop. Only the first reason counts, and it starts the deadline."""
        if self.reason is None:
            self.reason, self._end = reason, time.monotonic() + self._seconds
            self._requested.set()

    def remaining(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._end - time.monotonic())

    async def wait(self) -> None:
        await self._requested.wait()

    async def run_until_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work. When a stop is requested first, cancels the work and raises Stopped."""
        task, stopped = asyncio.create_task(work), asyncio.create_task(self.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Stopped
            return task.result()
        finally:
            task.cancel()
            stopped.cancel()
            await asyncio.wait({task, stopped})

    @contextmanager
    def graceful(self) -> Iterator[None]:
        """Within this block the first signal requests a stop instead of cancelling the task."""
        self._graceful = True
        try:
            yield
        finally:
            self._graceful = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Within this block signals request a stop, or cancel the task that entered."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def received(name: str) -> None:
            self.signals += 1
            if self.signals == 1 and self._graceful:
                self.request(name)
                return
            remove_handlers()
            if task is not None:
                task.cancel()

        def remove_handlers() -> None:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

        for number in SIGNALS:
            loop.add_signal_handler(number, received, number.name)
        try:
            yield
        finally:
            remove_handlers()

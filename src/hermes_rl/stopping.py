"""How a process that serves is told to stop: by a signal or by its own reasons, with a deadline from then on.

Always true: the first signal lets what is in flight finish, the second gives it up, the third is the system's own. A
signal that comes while nobody heeds it, as when it is still being opened, counts as the second.
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
    """It was told to stop before the work was done."""


class Stop:
    """`reason` is why it was told to stop, in words; None until then."""

    def __init__(self, seconds: float) -> None:
        self.reason: str | None = None
        self.signals = 0
        self._seconds, self._end = seconds, float("inf")
        self._told = asyncio.Event()
        self._heeded = False

    def tell(self, reason: str) -> None:
        """The first reason counts, and so does its deadline."""
        if self.reason is None:
            self.reason, self._end = reason, time.monotonic() + self._seconds
            self._told.set()

    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._end - time.monotonic())

    async def wait(self) -> None:
        await self._told.wait()

    async def unless(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives; Stopped, and the work cancelled, when it is told to stop first."""
        doing, told = asyncio.create_task(work), asyncio.create_task(self.wait())
        try:
            await asyncio.wait({doing, told}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise Stopped
            return doing.result()
        finally:
            doing.cancel()
            told.cancel()
            await asyncio.wait({doing, told})

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Within this block somebody waits for it."""
        self._heeded = True
        try:
            yield
        finally:
            self._heeded = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Within this block signals tell it, or cancel the task that entered."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def received(name: str) -> None:
            self.signals += 1
            if self.signals == 1 and self._heeded:
                self.tell(name)
                return
            forget()
            if task is not None:
                task.cancel()

        def forget() -> None:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

        for number in SIGNALS:
            loop.add_signal_handler(number, received, number.name)
        try:
            yield
        finally:
            forget()

"""Deadlines for awaits on the hot path: like asyncio.timeout, at a fraction of its cost.

    deadline.begin(seconds)
    try:
        return await something()
    except asyncio.CancelledError:
        deadline.reraise()
    finally:
        deadline.end()

`reraise` raises TimeoutError if the deadline alone cancelled the task, and CancelledError otherwise.
"""

import asyncio
from typing import NoReturn


class Deadline:
    """A reusable deadline for one task. Its timer keeps running between uses, which saves setting it again."""

    __slots__ = ("_cancelling", "_due", "_expired", "_loop", "_task", "_timer")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a running task")
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False
        self._cancelling = 0

    def begin(self, seconds: float) -> None:
        self._due = self._loop.time() + max(seconds, 0.0)
        self._expired = False
        self._cancelling = self._task.cancelling()
        if self._timer is None or self._timer.when() > self._due:
            self._set(seconds)

    def end(self) -> None:
        self._due = None

    def close(self) -> None:
        """Cancel the timer, which otherwise keeps the task alive until it fires."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reraise(self) -> NoReturn:
        """Call this when the await raised CancelledError."""
        if self._expired and self._task.uncancel() <= self._cancelling:
            raise TimeoutError from None
        raise asyncio.CancelledError

    @property
    def expired(self) -> bool:
        return self._expired

    def _set(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(seconds, 0.0), self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._due is None:
            return
        remaining = self._due - self._loop.time()
        if remaining > 0:
            self._set(remaining)
        else:
            self._expired = True
            self._task.cancel()

"""Deadlines for awaits on the hot path: what asyncio.timeout does, at a fraction of its cost.

    deadline.begin(seconds)
    try:
        return await something()
    except asyncio.CancelledError:
        deadline.reraise()
    finally:
        deadline.end()

`reraise` raises TimeoutError when the deadline, and nobody else, cancelled the task; else the cancellation goes on.
"""

import asyncio
from typing import NoReturn


class Deadline:
    """One task's deadline, used again and again. Its timer is left running between uses, which saves setting it."""

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
        """Let the timer go, which otherwise holds the task until it fires."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reraise(self) -> NoReturn:
        """To be called for a CancelledError that came out of the await."""
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
        left = self._due - self._loop.time()
        if left > 0:
            self._set(left)
        else:
            self._expired = True
            self._task.cancel()

"""What drivers share: the loop, the writing of their state, and the lock on what commands tell them.

Always true: the lock file's mtime is the driver's heartbeat; a full disk does not end a driver.
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from hermes_rl.core.file_lock import wait_for_lock

WRITE_STATE_EVERY = 2.0
LOCK_TIMEOUT = 5.0
StateT = TypeVar("StateT")


def drive(tick: Callable[[], bool], lock: int | Path, interval: float, on_error: Callable[[Exception], None]) -> None:
    """Call `tick` until it returns True. `on_error` gets what a tick raised, and raises it to end the loop."""
    over = False
    while not over:
        began = time.monotonic()
        with suppress(OSError):
            os.utime(lock)
        try:
            over = tick()
        except Exception as error:  # noqa: BLE001 (the driver decides)
            on_error(error)
        time.sleep(0.0 if over else max(0.05, interval - (time.monotonic() - began)))


class StateWriter(Generic[StateT]):
    """Writes a state, without the time of writing, when it changed, and every two seconds otherwise."""

    def __init__(self, write: Callable[[StateT], None], report: Callable[[str], None]) -> None:
        self._write, self._report = write, report
        self.written: StateT | None = None
        self._written_at = 0.0

    def put(self, state: StateT) -> None:
        if state == self.written and time.monotonic() - self._written_at < WRITE_STATE_EVERY:
            return
        try:
            self._write(state)
        except OSError as error:
            self._report(f"cannot write the state: {error}")
            return
        self.written, self._written_at = state, time.monotonic()


def lock_desired(path: Path) -> AbstractContextManager[None]:
    """One writer at a time of a file that commands write and a driver reads. Needs no free disk block."""
    return wait_for_lock(path.parent, LOCK_TIMEOUT, str(path))

"""Waiting for a file or folder that another process has locked; the kernel lets go when that one dies."""

import fcntl
import time
from collections.abc import Callable


def locked_within(
    descriptor: int, seconds: float, *, ask_every: float, waiting: Callable[[], object] = lambda: None
) -> bool:
    """Whether the lock could be had in that time. `waiting` is called whenever somebody else has it."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            waiting()
            time.sleep(ask_every)

"""In every Python whose clock is libfaketime's: `time.sleep` by another system call.

libfaketime 0.9.10 takes the moment to which CPython sleeps, on the monotonic clock that it was told to leave alone, for
one of its own, and the call fails with EINVAL.
"""

import select
import time
from typing import SupportsIndex


def sleep(seconds: float | SupportsIndex, /) -> None:
    select.select((), (), (), float(seconds))


time.sleep = sleep

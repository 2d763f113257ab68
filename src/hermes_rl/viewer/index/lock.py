"""The lock of an index: one process at a time writes it. The kernel releases the lock when the process dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_rl.viewer.index.schema import make_indexes_home

# The exit code of an indexer when another one has the lock.
EXIT_LOCKED = 3


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Try to hold the lock until the end of the block, without waiting; whether it worked."""
    make_indexes_home(path.parent)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(file)

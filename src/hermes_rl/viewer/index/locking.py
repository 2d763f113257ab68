"""One process at a time writes an index, whoever started it. The system lets go of the lock when that process dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_rl.viewer.index.schema import indexes_home_made

# What an indexer ends with when another one has the index.
HELD_BY_ANOTHER = 3


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Whether it is ours, until the end of the body; nobody waits for it."""
    indexes_home_made(path.parent)
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

"""Holding a file or folder for one process. The kernel lets go when the holder dies: nothing is left to clear away."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_rl.errors import ConfigError


@contextmanager
def only_writer(place: Path, elsewhere: str) -> Iterator[None]:
    """Hold a file, made if it is not there, or a folder; ConfigError when another process holds it."""
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    held = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process is writing {place}; wait for it or stop it, or name another with {elsewhere}"
            ) from None
        yield
    finally:
        os.close(held)

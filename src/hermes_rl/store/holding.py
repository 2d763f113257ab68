"""Holding a file or folder for one process. The kernel lets go when the holder dies: nothing is left to clear away."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_rl.errors import ConfigError
from hermes_rl.locks import locked_within

ASK_EVERY = 0.02


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


@contextmanager
def in_turn(lock: Path, seconds: float, what: str) -> Iterator[None]:
    """Hold a file that is there for nothing else, after whoever holds it now; ConfigError after so many seconds."""
    held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not locked_within(held, seconds, ask_every=ASK_EVERY):
            raise ConfigError(f"another process has held {what} for {seconds:g} s; try again later")
        yield
    finally:
        os.close(held)

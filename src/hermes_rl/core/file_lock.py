"""Locks on files and folders between processes. The kernel releases a lock when its holder dies."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.private_files import FILE_MODE, private_folder

POLL_SECONDS = 0.02


@contextmanager
def exclusive_lock(path: Path, option: str) -> Iterator[None]:
    """Lock a folder or a file, created if missing. ConfigError, naming `option`, when another process holds it."""
    if not path.is_dir():
        private_folder(path.parent)
        path.touch(FILE_MODE)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process is writing {path}; wait for it, stop it, or choose another path with {option}"
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def wait_for_lock(lock: Path, seconds: float, what: str) -> Iterator[None]:
    """Hold a folder or a dedicated lock file, waiting for the current holder; ConfigError after `seconds`."""
    flags = os.O_RDONLY if lock.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(lock, flags | os.O_CLOEXEC, 0o600)
    try:
        if not acquire_within(descriptor, seconds, poll_seconds=POLL_SECONDS):
            raise ConfigError(f"another process has held {what} for {seconds:g} s; try again later")
        yield
    finally:
        os.close(descriptor)


def acquire_within(
    descriptor: int, seconds: float, *, poll_seconds: float, on_wait: Callable[[], object] = lambda: None
) -> bool:
    """Whether the lock was acquired in time. `on_wait` is called on every failed attempt."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            on_wait()
            time.sleep(poll_seconds)

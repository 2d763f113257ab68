"""Failover: every shim watches the supervisor and starts another when it is dead or frozen.

Always true: no supervisor is started while one is working, and only one shim starts it. The supervisor's lock and the
mtime of the lock file, which can be set even on a full disk, show that it works. Time asleep does not count as frozen.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hermes_rl.core.private_files import open_private
from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import read_atomic_json
from hermes_rl.orchestration.supervision.process_tags import lock_is_free, try_lock, untagged_environ

POLL_INTERVAL = 0.5
FROZEN_AFTER = 30.0
# Python's start-up on a busy machine.
START_TIMEOUT = 60.0
FIRST_BACKOFF, MAX_BACKOFF = 3.0, 30.0


class Failover:
    def __init__(self, run: Path, start: Callable[[], None]) -> None:
        self._run, self._start = run, start
        self._lock = run / "supervisor.lock"
        self._next_poll = time.monotonic() + POLL_INTERVAL
        self._heartbeat: tuple[int, float] = (0, time.monotonic())
        self._failover_lock: int | None = None
        self._backoff, self._release_at = FIRST_BACKOFF, 0.0

    def poll(self) -> None:
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_INTERVAL
        if self._failover_lock is not None and now > self._release_at:
            os.close(self._failover_lock)
            self._failover_lock = None
        with suppress(OSError, subprocess.SubprocessError):
            if not lock_is_free(self._lock):
                self._backoff = FIRST_BACKOFF
                self._end_if_frozen(now)
            elif self._failover_lock is None and self._acquire_failover_lock():
                self._release_at = now + self._backoff
                self._backoff = min(MAX_BACKOFF, 2 * self._backoff)
                self._start()

    def _end_if_frozen(self, now: float) -> None:
        heartbeat = self._lock.stat().st_mtime_ns
        if heartbeat != self._heartbeat[0]:
            self._heartbeat = (heartbeat, now)
        elif now - self._heartbeat[1] > FROZEN_AFTER:
            self._heartbeat = (heartbeat, now)
            state = read_atomic_json(self._run / "state.json") or {}
            if state.get("supervisor"):
                ProcessIdentity(**state["supervisor"]).signal(signal.SIGKILL)

    def _acquire_failover_lock(self) -> bool:
        file = open_private(self._run / "succession.lock", os.O_RDWR | os.O_CREAT)
        if try_lock(file):
            self._failover_lock = file
            return True
        os.close(file)
        return False


def start_supervisor(command: Sequence[str]) -> None:
    """Start a supervisor that detaches from its caller, outlives it, and inherits none of its open files."""
    subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=untagged_environ(),
        cwd="/",
        start_new_session=True,
        timeout=START_TIMEOUT,
        check=True,
    )

"""Another supervisor when the last one is dead or frozen: what every keeper looks after.

Always true: no supervisor is started while one is at work; of several keepers one starts it. Whether it is at work is
told by its lock and by that file's time, which a full disk lets it set. Time in which the machine slept is no silence.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hermes_rl.processes import Identity
from hermes_rl.runs.steady import read_steadily
from hermes_rl.runs.supervision.marks import is_free, lock_is_free, unmarked_environ

LOOK_EVERY = 0.5
FROZEN_AFTER = 30.0
# Python itself on a machine with much else to do.
START_SECONDS = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 3.0, 30.0


class Succession:
    def __init__(self, run: Path, start: Callable[[], None]) -> None:
        self._run, self._start = run, start
        self._lock = run / "supervisor.lock"
        self._next_look = time.monotonic() + LOOK_EVERY
        self._beat: tuple[int, float] = (0, time.monotonic())
        self._turn: int | None = None
        self._pause, self._give_back = FIRST_PAUSE, 0.0

    def look(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY
        if self._turn is not None and now > self._give_back:
            os.close(self._turn)
            self._turn = None
        with suppress(OSError, subprocess.SubprocessError):
            if not lock_is_free(self._lock):
                self._pause = FIRST_PAUSE
                self._end_if_frozen(now)
            elif self._turn is None and self._is_my_turn():
                self._give_back = now + self._pause
                self._pause = min(LONGEST_PAUSE, 2 * self._pause)
                self._start()

    def _end_if_frozen(self, now: float) -> None:
        beat = self._lock.stat().st_mtime_ns
        if beat != self._beat[0]:
            self._beat = (beat, now)
        elif now - self._beat[1] > FROZEN_AFTER:
            self._beat = (beat, now)
            told = read_steadily(self._run / "state.json") or {}
            if told.get("supervisor"):
                Identity(**told["supervisor"]).signal(signal.SIGKILL)

    def _is_my_turn(self) -> bool:
        file = os.open(self._run / "succession.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if is_free(file, keep=True):
            self._turn = file
            return True
        os.close(file)
        return False


def start_supervisor(command: Sequence[str]) -> None:
    """It leaves whoever starts it at once, and outlives them; nothing of theirs is open in it."""
    subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=unmarked_environ(),
        cwd="/",
        start_new_session=True,
        timeout=START_SECONDS,
        check=True,
    )

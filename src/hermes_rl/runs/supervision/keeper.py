"""The keeper of one part: starts it, writes down what it says and how it ended, and leaves nothing of it behind.

    python -m hermes_rl.runs.supervision.keeper FOLDER LIFE

Always true: a part has one keeper at a time; the part dies with its keeper, and whatever it started dies with it; a
full disk costs lines of the log, never the part. When the supervisor is dead or silent, the keeper starts another.
"""

import json
import os
import selectors
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from hermes_rl.processes import Identity
from hermes_rl.runs.steady import read_steadily, write_steadily
from hermes_rl.runs.supervision.guard import OURS, adopt_orphans, guard, kill_group, leave_nothing, reap_orphans
from hermes_rl.runs.supervision.hiding import Hiding
from hermes_rl.runs.supervision.log_file import LogFile
from hermes_rl.runs.supervision.marks import ORDER, is_free, note_of
from hermes_rl.runs.supervision.succession import Succession, start_supervisor

LOCK_SECONDS = 5.0
LOOK_EVERY = 0.25
LAST_WORDS = 2.0
# What a guard may take to see that its part was killed.
GRACE = 2.0
READ = 64 * 1024
SUPERSEDED = 76


class Keeper:
    def __init__(self, folder: Path, order: dict[str, Any]) -> None:
        self._folder, self._order = folder, order
        self._log = LogFile(Path(order["log"]), order["log_bytes"], order["log_files"])
        self._hiding = Hiding(os.environ.get(name, "") for name in order.get("keys", ()))
        self._stop_at: float | None = None
        self._part: Identity | None = None
        self._exit_code: int | None = None
        self._ready = selectors.DefaultSelector()

    def keep(self) -> None:
        signal.signal(signal.SIGTERM, self._told_to_stop)
        for ignored in OURS[1:]:
            signal.signal(ignored, signal.SIG_IGN)
        adopt_orphans(yes=True)
        self._note()
        if self._stop_at is not None:
            return
        heard, said = os.pipe()
        known, report = os.pipe()
        until, _held = os.pipe()
        child = os.fork()
        if child == 0:
            for end in (heard, known, _held):
                os.close(end)
            guard(self._order, said, until, report)
        for end in (said, report, until):
            os.close(end)
        self._ready.register(heard, selectors.EVENT_READ, self._pump)
        self._ready.register(known, selectors.EVENT_READ, self._hear)
        os.set_blocking(heard, False)
        self._watch(child)
        leave_nothing(self._part.pid if self._part else None)
        self._last_words(heard)
        self._exit_code = -signal.SIGKILL if self._exit_code is None else self._exit_code
        self._note()

    def _watch(self, child: int) -> None:
        """Until the guard has ended, which it does after the part."""
        succession = Succession(self._folder.parents[1], self._start_supervisor)
        asked = False
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            for key, _ in self._ready.select(LOOK_EVERY) if self._ready.get_map() else ():
                if not key.data(key.fd):
                    self._ready.unregister(key.fd)
            if not self._ready.get_map():
                time.sleep(0.01)
            reap_orphans(child)
            succession.look()
            if self._stop_at is None or self._part is None:
                continue
            if not asked:
                asked = True
                self._part.signal(signal.SIGTERM)
            elif time.monotonic() > self._stop_at:
                kill_group(self._part.pid)
                if time.monotonic() > self._stop_at + GRACE:
                    os.kill(child, signal.SIGKILL)

    def _pump(self, output: int) -> bool:
        """Whether there may be more."""
        try:
            said = os.read(output, READ)
        except BlockingIOError:
            return True
        self._log.write(self._hiding.shown(said, last=not said))
        return bool(said)

    def _hear(self, report: int) -> bool:
        told = os.read(report, READ)
        for line in told.splitlines():
            news = json.loads(line)
            if "pid" in news:
                self._part = Identity.of(news["pid"])
            self._exit_code = news.get("exit_code", self._exit_code)
            with suppress(OSError):
                self._note()
        return bool(told)

    def _last_words(self, output: int) -> None:
        deadline = time.monotonic() + LAST_WORDS
        for key in list(self._ready.get_map().values()):
            if key.fd != output:
                key.data(key.fd)
        while self._pump(output) and time.monotonic() < deadline:
            time.sleep(0.005)
        self._log.write(self._hiding.shown(b"", last=True))
        self._log.close()

    def _start_supervisor(self) -> None:
        # It is our child for a moment, and must not come back to us as an orphan.
        adopt_orphans(yes=False)
        try:
            start_supervisor(self._order["supervisor"])
        finally:
            adopt_orphans(yes=True)

    def _told_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        if self._stop_at is None:
            self._stop_at = time.monotonic() + float(self._order["stop_within"])

    def _note(self) -> None:
        me = Identity.of(os.getpid())
        write_steadily(
            note_of(self._folder),
            {
                "life": self._order["life"],
                "keeper": {"pid": me.pid, "began": me.began},
                "process": {"pid": self._part.pid, "began": self._part.began} if self._part else None,
                "exit_code": self._exit_code,
                "dropped_lines": self._log.dropped,
            },
        )


def main(folder: Path, life: str) -> int:
    lock = os.open(folder / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + LOCK_SECONDS
    while not is_free(lock, keep=True):
        if time.monotonic() > deadline:
            return SUPERSEDED
        time.sleep(0.05)
    order = read_steadily(folder / ORDER)
    if order is None or order["life"] != life:
        return SUPERSEDED
    with suppress(KeyboardInterrupt):
        Keeper(folder, order).keep()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))

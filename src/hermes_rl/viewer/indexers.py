"""The processes that bring indexes up to their sources.

Always true: at most a few work at once, and all end with the viewer. One that only waits for its source to grow gives
way to one that has work.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from hermes_rl import jsontext
from hermes_rl.viewer.index.locking import HELD_BY_ANOTHER
from hermes_rl.viewer.sources.source import Source

PROCESSES = 2
# Longer than a page waits before it asks again, so that a run that is watched needs one process.
FOLLOWED_SECONDS = 15.0
AGAIN_SECONDS = 1.0
LATER_SECONDS = 10.0
MESSAGE = 2_000

Process = subprocess.Popen[bytes]


@dataclass(slots=True)
class _Work:
    source: Source
    process: Process | None = None
    not_before: float = 0.0
    problem: str | None = None


class Indexers:
    """`whole` says whether nothing is left to do for a source. Called from several threads."""

    def __init__(self, whole: Callable[[Source], bool]) -> None:
        self._whole = whole
        self._work: dict[Path, _Work] = {}
        self._leaving: list[Process] = []
        self._lock = Lock()

    def close(self) -> None:
        """End the processes; each is done within the moment, since it only reads and commits."""
        with self._lock:
            processes = [work.process for work in self._work.values() if work.process]
            leaving = self._leaving
        for process in processes:
            _dismiss(process)
        for process in (*processes, *leaving):
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            if process.poll() is None:
                process.kill()
                process.wait()
            _let_go(process)

    def go_on(self, path: Path, source: Source) -> None:
        """See to it that the index of a source is worked on, or is as soon as may be."""
        with self._lock:
            work = self._work.setdefault(path, _Work(source))
            for one in self._work.values():
                _look_after(one)
            busy = [one for one in self._work.values() if one.process is not None]
            due = work.process is None and time.monotonic() > work.not_before
        if not due or (len(busy) >= PROCESSES and not self._freed(busy)):
            return
        with self._lock:
            if work.process is None and sum(one.process is not None for one in self._work.values()) < PROCESSES:
                work.process = _started(path, source)

    def working(self, path: Path) -> bool:
        with self._lock:
            work = self._work.get(path)
            return work is not None and work.process is not None

    def problem(self, path: Path) -> str | None:
        """Why the index cannot be made."""
        with self._lock:
            work = self._work.get(path)
            return work.problem if work else None

    def _freed(self, busy: Sequence[_Work]) -> bool:
        """Whether one of them has nothing to do, and was sent away."""
        idle = next((one for one in busy if self._whole(one.source)), None)
        if idle is None:
            return False
        with self._lock:
            for ended in [one for one in self._leaving if one.poll() is not None]:
                _let_go(ended)
                self._leaving.remove(ended)
            if idle.process is not None:
                _dismiss(idle.process)
                self._leaving.append(idle.process)
                idle.process, idle.not_before = None, time.monotonic() + AGAIN_SECONDS
        return True


def _dismiss(process: Process) -> None:
    """It ends by itself when nobody is at the other end."""
    if process.stdin:
        with suppress(OSError):
            process.stdin.close()


def _let_go(process: Process) -> None:
    for pipe in (process.stdin, process.stderr):
        if pipe:
            with suppress(OSError):
                pipe.close()


def _look_after(work: _Work) -> None:
    process = work.process
    if process is None or process.poll() is None:
        return
    told = process.stderr.read(MESSAGE).decode("utf-8", "replace").strip() if process.stderr else ""
    _let_go(process)
    code, lines = process.returncode, told.splitlines()
    failed = code not in {0, HELD_BY_ANOTHER}
    work.problem = (lines[-1] if lines else f"the indexer ended with {code}") if failed else None
    work.process = None
    # Another viewer's indexer does the work, or this one cannot: starting one each moment would help nobody.
    work.not_before = time.monotonic() + (LATER_SECONDS if code else AGAIN_SECONDS)


def _started(path: Path, source: Source) -> Process:
    where = {"store": source.store} if source.store is not None else {"file": str(source.file)}
    job = {"index": str(path), "followed": FOLLOWED_SECONDS, **where}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "hermes_rl.viewer.index"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None  # noqa: S101 - asked for above
    with suppress(OSError):
        process.stdin.write(jsontext.dumps(job) + b"\n")
        process.stdin.flush()
    return process

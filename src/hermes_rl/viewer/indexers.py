"""The processes that build indexes.

Always true: at most a few run at once, and all exit with the viewer. A process that only waits for its source to grow
is replaced when another index has work.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from hermes_rl.core import fast_json
from hermes_rl.core.child_python import python_command
from hermes_rl.viewer.index.lock import EXIT_LOCKED
from hermes_rl.viewer.sources.source import RecordSource

MAX_PROCESSES = 2
# Longer than the polling interval of a page, so that a watched run needs only one process.
FOLLOW_SECONDS = 15.0
RESTART_SECONDS = 1.0
RETRY_SECONDS = 10.0
MESSAGE_BYTES = 2_000

Process = subprocess.Popen[bytes]


@dataclass(slots=True)
class _IndexJob:
    source: RecordSource
    process: Process | None = None
    not_before: float = 0.0
    problem: str | None = None


class Indexers:
    """`is_complete` says whether the index of a source is up to date. Thread-safe."""

    def __init__(self, is_complete: Callable[[RecordSource], bool]) -> None:
        self._is_complete = is_complete
        self._work: dict[Path, _IndexJob] = {}
        self._leaving: list[Process] = []
        self._lock = Lock()

    def close(self) -> None:
        """Stop the processes; they exit quickly, since they only read and commit."""
        with self._lock:
            processes = [work.process for work in self._work.values() if work.process]
            leaving = self._leaving
        for process in processes:
            _request_exit(process)
        for process in (*processes, *leaving):
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            if process.poll() is None:
                process.kill()
                process.wait()
            _close_pipes(process)

    def ensure_running(self, path: Path, source: RecordSource) -> None:
        """Start a process for the index of a source, if one is due and there is a free slot."""
        with self._lock:
            work = self._work.setdefault(path, _IndexJob(source))
            for job in self._work.values():
                _reap(job)
            busy = [job for job in self._work.values() if job.process is not None]
            due = work.process is None and time.monotonic() > work.not_before
        if not due or (len(busy) >= MAX_PROCESSES and not self._free_slot(busy)):
            return
        with self._lock:
            if work.process is None and sum(job.process is not None for job in self._work.values()) < MAX_PROCESSES:
                work.process = _start_process(path, source)

    def is_running(self, path: Path) -> bool:
        with self._lock:
            work = self._work.get(path)
            return work is not None and work.process is not None

    def problem(self, path: Path) -> str | None:
        """Why the index cannot be built."""
        with self._lock:
            work = self._work.get(path)
            return work.problem if work else None

    def _free_slot(self, busy: Sequence[_IndexJob]) -> bool:
        """Stop one of the jobs that has nothing to do; whether there was one."""
        idle = next((job for job in busy if self._is_complete(job.source)), None)
        if idle is None:
            return False
        with self._lock:
            for ended in [process for process in self._leaving if process.poll() is not None]:
                _close_pipes(ended)
                self._leaving.remove(ended)
            if idle.process is not None:
                _request_exit(idle.process)
                self._leaving.append(idle.process)
                idle.process, idle.not_before = None, time.monotonic() + RESTART_SECONDS
        return True


def _request_exit(process: Process) -> None:
    """The process exits when its standard input closes."""
    if process.stdin:
        with suppress(OSError):
            process.stdin.close()


def _close_pipes(process: Process) -> None:
    for pipe in (process.stdin, process.stderr):
        if pipe:
            with suppress(OSError):
                pipe.close()


def _reap(work: _IndexJob) -> None:
    process = work.process
    if process is None or process.poll() is None:
        return
    output = process.stderr.read(MESSAGE_BYTES).decode("utf-8", "replace").strip() if process.stderr else ""
    _close_pipes(process)
    code, lines = process.returncode, output.splitlines()
    failed = code not in {0, EXIT_LOCKED}
    work.problem = (lines[-1] if lines else f"the indexer exited with {code}") if failed else None
    work.process = None
    # Another viewer's indexer does the work, or this one fails: restarting immediately would not help.
    work.not_before = time.monotonic() + (RETRY_SECONDS if code else RESTART_SECONDS)


def _start_process(path: Path, source: RecordSource) -> Process:
    where = {"store": source.store} if source.store is not None else {"file": str(source.file)}
    job = {"index": str(path), "followed": FOLLOW_SECONDS, **where}
    process = subprocess.Popen(
        python_command("-m", "hermes_rl.viewer.index"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None  # noqa: S101 - asked for above
    with suppress(OSError):
        process.stdin.write(fast_json.dumps(job) + b"\n")
        process.stdin.flush()
    return process

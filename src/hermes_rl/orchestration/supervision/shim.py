"""The shim of one component: starts it, writes its log and exit code, and leaves none of its processes behind.

    python -m hermes_rl.orchestration.supervision.shim FOLDER LAUNCH_ID

Always true: a component has one shim at a time (`keeper` in state.json and note.json); the component and everything it
started die with the shim; a full disk costs log lines, never the component. It replaces a dead or frozen supervisor.
"""

import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from hermes_rl.core.keys import stored_secrets
from hermes_rl.core.private_files import open_private, private_folder
from hermes_rl.core.process_guard import (
    IGNORED_SIGNALS,
    kill_descendants,
    kill_group,
    reap_children,
    run_guarded,
    set_child_subreaper,
)
from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import read_atomic_json, write_atomic_json
from hermes_rl.orchestration.supervision.failover import Failover, start_supervisor
from hermes_rl.orchestration.supervision.process_tags import LAUNCH_FILE, shim_status_path, try_lock

REDACTED = b"**********"
# Shorter values are not keys, and redacting them would garble ordinary words.
MIN_SECRET_LENGTH = 8


class StreamRedactor:
    """Removes a component's keys from its output, also when a key is split between two reads."""

    def __init__(self, secrets: Iterable[str]) -> None:
        long = {secret.encode() for secret in secrets if len(secret) >= MIN_SECRET_LENGTH}
        self._secrets = sorted(long, key=len, reverse=True)
        self._held = b""

    def redact(self, data: bytes, *, last: bool = False) -> bytes:
        """The redacted text; a suffix that may be the start of a key is held back until the next call or the `last`."""
        text = self._held + data
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        held = 0 if last else max((_partial_match(text, secret) for secret in self._secrets), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _partial_match(text: bytes, secret: bytes) -> int:
    """The length of the longest prefix of the secret that the text ends with."""
    longest = min(len(text), len(secret) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(secret[:length])), 0)


class LogFile:
    """A component's log, rotated by size: `path`, path.1, path.2 …, at most `files` of about `max_bytes` each.

    Writing never fails: lines lost to a full disk are counted, and the log notes them when there is room again.
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        self._path, self._max_bytes, self._files = path, max_bytes, files
        self._file: int | None = None
        self._size = 0
        self.dropped = 0
        self._unreported = 0

    def write(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._open()
            if self._unreported:
                self._write_all(f"[{self._unreported} lines were not written: the disk was full]\n".encode())
                self._unreported = 0
            self._write_all(data)
        except OSError:
            lines = max(1, data.count(b"\n"))
            self.dropped += lines
            self._unreported += lines
            self.close()

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None

    def _open(self) -> None:
        if self._file is not None and self._size >= self._max_bytes:
            self.close()
            self._rotate()
        if self._file is None:
            private_folder(self._path.parent)
            self._file = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._size = os.fstat(self._file).st_size

    def _write_all(self, data: bytes) -> None:
        if self._file is None:
            raise AssertionError("the log is open")
        remaining = memoryview(data)
        while remaining:
            written = os.write(self._file, remaining)
            self._size += written
            remaining = remaining[written:]

    def _rotate(self) -> None:
        for number in range(self._files - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            with suppress(FileNotFoundError):
                newer.replace(older)


LOCK_TIMEOUT = 5.0
POLL_INTERVAL = 0.25
DRAIN_TIMEOUT = 2.0
# How long the guard may take to notice that its component was killed.
KILL_GRACE = 2.0
READ_BYTES = 64 * 1024
SUPERSEDED = 76


class Shim:
    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self._folder, self._spec = folder, spec
        self._log = LogFile(Path(spec["log"]), spec["log_bytes"], spec["log_files"])
        named = {os.environ.get(name, "") for name in spec.get("keys", ())}
        # The component is a command, so it loads the stored keys too.
        self._redactor = StreamRedactor(named | stored_secrets(Path(spec["cwd"])))
        self._stop_at: float | None = None
        self._process: ProcessIdentity | None = None
        self._exit_code: int | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for ignored in IGNORED_SIGNALS[1:]:
            signal.signal(ignored, signal.SIG_IGN)
        set_child_subreaper(enabled=True)
        self._write_status()
        if self._stop_at is not None:
            return
        output_r, output_w = os.pipe()
        report_r, report_w = os.pipe()
        # Never closed here: the guard sees it close when this process dies.
        lifeline_r, lifeline_w = os.pipe()
        shim, guard = os.getpid(), os.fork()
        if guard == 0:
            for end in (output_r, report_r, lifeline_w):
                os.close(end)
            try:
                run_guarded(
                    self._spec["command"],
                    lifeline_r,
                    owner=shim,
                    report=report_w,
                    output=output_w,
                    cwd=self._spec["cwd"],
                )
            finally:
                os._exit(0)
        for end in (output_w, report_w, lifeline_r):
            os.close(end)
        self._selector.register(output_r, selectors.EVENT_READ, self._pump)
        self._selector.register(report_r, selectors.EVENT_READ, self._read_reports)
        os.set_blocking(output_r, False)
        self._watch(guard)
        kill_descendants(self._process.pid if self._process else None)
        self._drain_output(output_r)
        self._exit_code = -signal.SIGKILL if self._exit_code is None else self._exit_code
        self._write_status()

    def _watch(self, guard: int) -> None:
        """Wait for the guard, which ends after the component."""
        failover = Failover(self._folder.parents[1], self._start_supervisor)
        term_sent = False
        ended: dict[int, int] = {}
        while reap_children(ended) and guard not in ended:
            for key, _ in self._selector.select(POLL_INTERVAL) if self._selector.get_map() else ():
                if not key.data(key.fd):
                    self._selector.unregister(key.fd)
            if not self._selector.get_map():
                time.sleep(0.01)
            failover.poll()
            if self._stop_at is None or self._process is None:
                continue
            if not term_sent:
                term_sent = True
                self._process.signal(signal.SIGTERM)
            elif time.monotonic() > self._stop_at:
                kill_group(self._process.pid)
                if time.monotonic() > self._stop_at + KILL_GRACE:
                    os.kill(guard, signal.SIGKILL)

    def _pump(self, output: int) -> bool:
        """Copy output to the log; False at its end."""
        try:
            data = os.read(output, READ_BYTES)
        except BlockingIOError:
            return True
        self._log.write(self._redactor.redact(data, last=not data))
        return bool(data)

    def _read_reports(self, report: int) -> bool:
        data = os.read(report, READ_BYTES)
        for line in data.splitlines():
            fields = json.loads(line)
            if "pid" in fields:
                self._process = ProcessIdentity.from_pid(fields["pid"])
            self._exit_code = fields.get("exit_code", self._exit_code)
            with suppress(OSError):
                self._write_status()
        return bool(data)

    def _drain_output(self, output: int) -> None:
        deadline = time.monotonic() + DRAIN_TIMEOUT
        for key in list(self._selector.get_map().values()):
            if key.fd != output:
                key.data(key.fd)
        while self._pump(output) and time.monotonic() < deadline:
            time.sleep(0.005)
        self._log.write(self._redactor.redact(b"", last=True))
        self._log.close()

    def _start_supervisor(self) -> None:
        # The supervisor detaches by orphaning itself, and must not become our child again.
        set_child_subreaper(enabled=False)
        try:
            start_supervisor(self._spec["supervisor"])
        finally:
            set_child_subreaper(enabled=True)

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        if self._stop_at is None:
            self._stop_at = time.monotonic() + float(self._spec["stop_within"])

    def _write_status(self) -> None:
        me = ProcessIdentity.from_pid(os.getpid())
        write_atomic_json(
            shim_status_path(self._folder),
            {
                "life": self._spec["life"],
                "keeper": {"pid": me.pid, "began": me.began},
                "process": {"pid": self._process.pid, "began": self._process.began} if self._process else None,
                "exit_code": self._exit_code,
                "dropped_lines": self._log.dropped,
            },
        )


def main(folder: Path, launch_id: str) -> int:
    lock = open_private(folder / "keeper.lock", os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + LOCK_TIMEOUT
    while not try_lock(lock):
        if time.monotonic() > deadline:
            return SUPERSEDED
        time.sleep(0.05)
    spec = read_atomic_json(folder / LAUNCH_FILE)
    if spec is None or spec["life"] != launch_id:
        return SUPERSEDED
    with suppress(KeyboardInterrupt):
        Shim(folder, spec).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))

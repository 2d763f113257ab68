"""The ledger: a record on disk of the sandboxes this process owns, so that another process can remove leftovers.

One file per owner in `~/.hermes/rl/sandboxes`, locked while the owner lives. The kernel releases the lock even after
`kill -9`, so a free lock means a dead owner, even if its pid has been reused. An entry is written before its sandbox is
created. Entries hold no secrets.
"""

import contextlib
import fcntl
import json
import logging
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import SandboxError
from hermes_rl.core.paths import rl_home
from hermes_rl.core.private_files import private_folder, write_private

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A sandbox in the ledger: its backend, the settings to reach that backend again, and what would be left over."""

    name: str
    backend: str
    settings: Mapping[str, Any]
    resources: Mapping[str, Any]


class SandboxLedger:
    """The ledger of this process. The file exists only while there are entries."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or rl_home() / "sandboxes"
        self.owner = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._fd: int | None = None
        self._live: dict[str, LedgerEntry] = {}

    @property
    def path(self) -> Path:
        return self._directory / f"{self.owner}.jsonl"

    def record(self, name: str, backend: str, settings: Mapping[str, Any], resources: Mapping[str, Any]) -> None:
        """Add or update an entry. It is on disk when this returns."""
        self._live[name] = LedgerEntry(name, backend, settings, resources)
        self._append({"name": name, "backend": backend, "settings": settings, "resources": resources})

    def remove(self, name: str) -> None:
        """Mark a sandbox as gone. On a full disk the entry stays in the file, and a reaper finds nothing to remove."""
        if self._live.pop(name, None) is None or self._fd is None:
            return
        if self._live:
            with contextlib.suppress(SandboxError):
                self._append({"name": name, "ended": True})
        else:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            _locks.discard(self._fd)
            self._fd = None

    def _append(self, record: Mapping[str, Any]) -> None:
        line = f"{json.dumps(record)}\n".encode()
        try:
            if self._fd is None:
                self._fd = _open_locked(self.path)
                _locks.add(self._fd)
            os.write(self._fd, line)
        except OSError as error:
            raise SandboxError(
                "ledger", f"cannot write {self.path}: {error}; set HERMES_HOME to a writable directory"
            ) from error


# A forked worker is not the owner and must not keep the lock after we die.
_locks: set[int] = set()


def _close_locks() -> None:
    for fd in _locks:
        os.close(fd)
    _locks.clear()


os.register_at_fork(after_in_child=_close_locks)


class AbandonedLedger:
    """The ledger of a dead owner, locked against other reapers until `finish`."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self.entries = _read_entries(path)

    def finish(self, left: Sequence[LedgerEntry]) -> None:
        """Delete the ledger, or keep the entries that could not be removed for the next reaper."""
        if left:
            rewritten = self.path.with_suffix(".kept")
            write_private(rewritten, b"".join(f"{json.dumps(asdict(entry))}\n".encode() for entry in left))
            rewritten.replace(self.path)
        else:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)


def abandoned_ledgers(directory: Path | None = None) -> Iterator[AbandonedLedger]:
    """The ledgers of dead owners."""
    for path in sorted((directory or rl_home() / "sandboxes").glob("*.jsonl")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if _try_lock(fd) and os.fstat(fd).st_nlink:
            yield AbandonedLedger(path, fd)
        else:
            os.close(fd)


def backends_in_use(directory: Path | None = None) -> set[str]:
    """The backends on which living owners have sandboxes."""
    backends = set()
    for path in (directory or rl_home() / "sandboxes").glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if not _try_lock(fd):
                    backends |= {entry.backend for entry in _read_entries(path)}
            finally:
                os.close(fd)
    return backends


def _open_locked(path: Path) -> int:
    private_folder(path.parent)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        # A reaper may have found the file unlocked between these two lines and removed it.
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_entries(path: Path) -> list[LedgerEntry]:
    """Entries not marked as ended. A last line cut off by the owner's death is skipped: there was no sandbox yet."""
    live: dict[str, LedgerEntry] = {}
    unreadable = 0
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
            name = record["name"]
            if record.get("ended"):
                live.pop(name, None)
            else:
                live[name] = LedgerEntry(name, record["backend"], record["settings"], record["resources"])
        except (ValueError, KeyError):
            unreadable += 1
    if unreadable:
        _log.warning("%s: skipped %d unreadable lines", path, unreadable)
    return list(live.values())

"""The ledger: what sandboxes this process owns, on disk, so that another can remove what it leaves behind.

One file an owner, in `~/.hermes/rl/sandboxes`, locked for as long as the owner lives: the kernel gives the lock back
even after `kill -9`, so a lock that can be had means a dead owner, whatever its process number is now used for.
An entry is written before its sandbox is made. Entries hold no secret.
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

from hermes_rl.errors import SandboxError
from hermes_rl.home import rl_home

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """A sandbox in the ledger: whose backend, and what would be left of it. `settings` reach the backend again."""

    name: str
    backend: str
    settings: Mapping[str, Any]
    resources: Mapping[str, Any]


class Ledger:
    """This owner's own ledger; the file appears with the first entry and goes with the last."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or rl_home() / "sandboxes"
        self.owner = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._fd: int | None = None
        self._live: dict[str, Entry] = {}

    @property
    def path(self) -> Path:
        return self._directory / f"{self.owner}.jsonl"

    def begin(self, name: str, backend: str, settings: Mapping[str, Any], resources: Mapping[str, Any]) -> None:
        """Write an entry down; also to add resources to one. On disk before it returns."""
        self._live[name] = Entry(name, backend, settings, resources)
        self._append({"name": name, "backend": backend, "settings": settings, "resources": resources})

    def end(self, name: str) -> None:
        """All of it is gone. On a full disk the entry stays in the file, and a reaper will find nothing there."""
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
                self._fd = _locked(self.path)
                _locks.add(self._fd)
            os.write(self._fd, line)
        except OSError as error:
            raise SandboxError(
                "ledger", f"cannot write {self.path}: {error}; set HERMES_HOME to a directory that can be written"
            ) from error


# A worker that our process forks is not the owner, and must not keep the lock when we die.
_locks: set[int] = set()


def _close_locks() -> None:
    for fd in _locks:
        os.close(fd)
    _locks.clear()


os.register_at_fork(after_in_child=_close_locks)


class AbandonedLedger:
    """The ledger of a dead owner, locked against other reapers until it is settled."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self.entries = _entries(path)

    def settle(self, left: Sequence[Entry]) -> None:
        """Remove it, or keep it with the entries that could not be removed, for the next reaper."""
        if left:
            kept = self.path.with_suffix(".kept")
            kept.write_bytes(b"".join(f"{json.dumps(asdict(entry))}\n".encode() for entry in left))
            kept.replace(self.path)
        else:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)


def abandoned(directory: Path | None = None) -> Iterator[AbandonedLedger]:
    """The ledgers whose owners are dead."""
    for path in sorted((directory or rl_home() / "sandboxes").glob("*.jsonl")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if _try_lock(fd) and os.fstat(fd).st_nlink:
            yield AbandonedLedger(path, fd)
        else:
            os.close(fd)


def living_backends(directory: Path | None = None) -> set[str]:
    """The backends that living owners have sandboxes on."""
    found = set()
    for path in (directory or rl_home() / "sandboxes").glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if not _try_lock(fd):
                    found |= {entry.backend for entry in _entries(path)}
            finally:
                os.close(fd)
    return found


def _locked(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        # A reaper may have found it between these two lines, empty and with no lock, and removed it.
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _entries(path: Path) -> list[Entry]:
    """What never ended. A last line that was torn by the owner's death is left out: its sandbox was never made."""
    live: dict[str, Entry] = {}
    unread = 0
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
            name = record["name"]
            if record.get("ended"):
                live.pop(name, None)
            else:
                live[name] = Entry(name, record["backend"], record["settings"], record["resources"])
        except (ValueError, KeyError):
            unread += 1
    if unread:
        _log.warning("%s: %d lines that cannot be read were passed over", path, unread)
    return list(live.values())

"""Find and kill processes through the host's /proc. A process that vanishes meanwhile is not an error."""

import asyncio
import os
import signal
from collections.abc import Iterable

_KILL_ROUNDS = 50


def children(pid: int) -> list[int]:
    """The direct children of a process. The kernel lists them per thread."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        listed = _read(f"/proc/{pid}/task/{thread}/children")
        found.extend(int(word) for word in listed.split())
    return found


def descendants(pid: int) -> list[int]:
    """All descendants of a process, without the process itself."""
    found = children(pid)
    for child in found:
        found.extend(children(child))
    return found


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process."""
    return _read(f"/proc/{pid}/stat").rpartition(b") ")[2][:1] == b"T"


async def kill_by_argument(argument: str) -> None:
    """Kill every process that has exactly this argument, and its descendants, until none is left."""
    wanted = argument.encode()
    for round_ in range(_KILL_ROUNDS):
        roots = [pid for pid in all_pids() if wanted in _read(f"/proc/{pid}/cmdline").split(b"\0")]
        if not roots:
            return
        send_signal([*(pid for root in roots for pid in descendants(root)), *roots])
        await asyncio.sleep(0.001 * (round_ + 1))


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def send_signal(pids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall() or b""
    except OSError:
        return b""

"""Finding and killing processes from the host's /proc.

A process is known by its parent and by a marker in the environment it was started with, so that children which left
their session or lost their parent are still found. A process that vanishes meanwhile is no error.
"""

import asyncio
import os
import signal
from collections.abc import Iterable

MARKER = "HERMES_RL_EXEC"
_HALT_ROUNDS = 100
_ENTRY = f"{MARKER}=".encode()


def children(pid: int) -> list[int]:
    """The direct children of a process. The kernel keeps them by thread, so every thread is asked."""
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
    """Children, their children and so on, without the process itself."""
    found = children(pid)
    for child in found:
        found.extend(children(child))
    return found


def marker_of(pid: int) -> str | None:
    """The marker a process was started with, if it still shows one."""
    for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(_ENTRY):
            return entry.removeprefix(_ENTRY).decode(errors="replace")
    return None


async def halt(pid: int) -> None:
    """Stop a process, so that it makes no more children: one killed while making a child leaves an orphan unseen."""
    send_signal([pid], signal.SIGSTOP)
    for _ in range(_HALT_ROUNDS):
        state = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1]
        if state in ([], [b"T"], [b"t"], [b"Z"], [b"X"]):
            return
        await asyncio.sleep(0.001)


def everyone() -> list[int]:
    """Every process this one can see."""
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

"""The machine: ports, room on its disks, memory, clock. Everything is looked at, nothing is asked of a network."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import hermes_rl
from hermes_rl.home import rl_home
from hermes_rl.runs.doctor.finding import Finding, State

# Of each: whose it is by default, and how that one is given another.
PORTS = {
    8000: ("hermes-rl api", "hermes-rl api --port 8010"),
    8001: ("hermes-rl trainer", "hermes-rl trainer --tinker.port 8011"),
}
GB = 10**9
# Of a run with a self-hosted engine: its environment and wheels take 3 GB, checkpoints the rest.
ROOM_FOR_RUNS, ROOM_FOR_ANYTHING, ROOM_IN_TMP = 5 * GB, GB // 2, GB
MEMORY_FOR_RUNS = 3 * GB
_LISTENS = "0A"
_A_DAY = 86_400.0


def ports() -> list[Finding]:
    return [_port(number, whose, mend) for number, (whose, mend) in PORTS.items()]


def disk() -> list[Finding]:
    return [
        _room("disk home", rl_home(), ROOM_FOR_RUNS, "HERMES_HOME=/bigger/disk hermes-rl …"),
        _room("disk temporary", Path(tempfile.gettempdir()), ROOM_IN_TMP, "TMPDIR=/bigger/disk hermes-rl …"),
    ]


def memory() -> list[Finding]:
    free, cores = _free_memory(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if free is None:
        return [Finding("memory", State.WARN, f"how much is free could not be found out; {cores} cores")]
    what = f"{free / GB:.1f} GB free, {cores} cores"
    if free >= MEMORY_FOR_RUNS:
        return [Finding("memory", State.OK, what)]
    what += f"; a self-hosted engine with a small model takes {MEMORY_FOR_RUNS / GB:.0f} GB"
    return [Finding("memory", State.WARN, what, "ps aux --sort=-rss | head")]


def clock() -> list[Finding]:
    """Wrong when it is before our own files: then certificates fail, and what was kept looks as if from the future."""
    now, written = time.time(), Path(hermes_rl.__file__).stat().st_mtime
    shown = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if now < written - _A_DAY:
        what = f"{shown}, which is before hermes-rl was installed here"
        return [Finding("clock", State.WARN, what, "sudo timedatectl set-ntp true")]
    return [Finding("clock", State.OK, shown)]


def _port(number: int, whose: str, mend: str) -> Finding:
    check = f"port {number}"
    if _is_free(number):
        return Finding(check, State.OK, f"free, for {whose}")
    holder = _holder(number) or "a process of another user"
    return Finding(check, State.WARN, f"held by {holder}; {whose} takes it by default, runs take a free one", mend)


def _is_free(number: int) -> bool:
    with closing(socket.socket()) as one:
        # As servers bind: what an ended server left in TIME_WAIT is no holder.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", number))
        except OSError:
            return False
    return True


def _holder(number: int) -> str | None:
    """The process that listens there, by name and id. Its arguments may hold secrets and are not looked at."""
    if not Path("/proc/net/tcp").exists():
        return _holder_by_lsof(number)
    sockets = {f"socket:[{inode}]" for inode in _listening(number)}
    for folder in Path("/proc").glob("[0-9]*"):
        # Other users' are closed to us, and processes end while we look.
        with suppress(OSError):
            if any(str(link.readlink()) in sockets for link in (folder / "fd").iterdir()):
                return f"{(folder / 'comm').read_text().strip()} (process {folder.name})"
    return None


def _listening(number: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == number:
                    yield fields[9]


def _holder_by_lsof(number: int) -> str | None:
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["lsof", "-nP", f"-iTCP:{number}", "-sTCP:LISTEN", "-Fpc"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.split()
        told = {line[0]: line[1:] for line in said}
        return f"{told['c']} (process {told['p']})" if {"c", "p"} <= told.keys() else None
    return None


def _room(check: str, place: Path, wanted: int, mend: str) -> Finding:
    there = next(one for one in (place, *place.parents) if one.exists())
    free = shutil.disk_usage(there).free
    what = f"{free / GB:.1f} GB free at {place}"
    if not os.access(there, os.W_OK):
        return Finding(check, State.MISSING, f"{place} cannot be written", mend)
    if free < ROOM_FOR_ANYTHING:
        return Finding(check, State.MISSING, f"{what}: no run can be kept", mend)
    if free < wanted:
        return Finding(check, State.WARN, f"{what}; {wanted / GB:.0f} GB is what a run may come to need", mend)
    return Finding(check, State.OK, what)


def _free_memory() -> int | None:
    """What the system would give, or the control group that we are in, whichever is less."""
    free = list(_free_in_groups())
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024)
    with suppress(OSError, ValueError):
        free.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(free, default=None)


def _free_in_groups() -> Iterator[int]:
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        # `max` stands for no limit and is no number.
        with suppress(OSError, ValueError):
            room = int(Path(folder, limit).read_text()) - int(Path(folder, used).read_text())
            yield max(room, 0)

"""Checks of the machine: ports, disk space, memory and clock, without network access."""

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

from hermes_rl import version
from hermes_rl.core.memory import free_memory
from hermes_rl.core.paths import rl_home
from hermes_rl.orchestration.doctor.finding import DoctorFinding, FindingState

# The default user of each port, and how to give it another one.
PORTS = {
    8000: ("hermes-rl api", "hermes-rl api --port 8010"),
    8001: ("hermes-rl trainer", "hermes-rl trainer --tinker.port 8011"),
}
GB = 10**9
# With a self-hosted engine: its environment and wheels take 3 GB, checkpoints the rest.
DISK_FOR_RUNS, MIN_DISK, DISK_FOR_TMP = 5 * GB, GB // 2, GB
MEMORY_FOR_RUNS = 3 * GB
_LISTENS = "0A"
_A_DAY = 86_400.0


def ports() -> list[DoctorFinding]:
    return [_port(number, user, fix) for number, (user, fix) in PORTS.items()]


def disk() -> list[DoctorFinding]:
    return [
        _disk_space("disk home", rl_home(), DISK_FOR_RUNS, "HERMES_HOME=/bigger/disk hermes-rl …"),
        _disk_space("disk temporary", Path(tempfile.gettempdir()), DISK_FOR_TMP, "TMPDIR=/bigger/disk hermes-rl …"),
    ]


def memory() -> list[DoctorFinding]:
    free, cores = free_memory(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if free is None:
        return [DoctorFinding("memory", FindingState.WARN, f"free memory is unknown; {cores} cores")]
    what = f"{free / GB:.1f} GB free, {cores} cores"
    if free >= MEMORY_FOR_RUNS:
        return [DoctorFinding("memory", FindingState.OK, what)]
    what += f"; a self-hosted engine with a small model takes {MEMORY_FOR_RUNS / GB:.0f} GB"
    return [DoctorFinding("memory", FindingState.WARN, what, "ps aux --sort=-rss | head")]


def clock() -> list[DoctorFinding]:
    """A clock earlier than our installed files is wrong: certificates fail, and files have mtimes in the future."""
    now, written = time.time(), Path(version.__file__).stat().st_mtime
    shown = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if now < written - _A_DAY:
        what = f"{shown}, which is before hermes-rl was installed"
        return [DoctorFinding("clock", FindingState.WARN, what, "sudo timedatectl set-ntp true")]
    return [DoctorFinding("clock", FindingState.OK, shown)]


def _port(number: int, user: str, fix: str) -> DoctorFinding:
    check = f"port {number}"
    if _is_free(number):
        return DoctorFinding(check, FindingState.OK, f"free, for {user}")
    holder = _port_holder(number) or "a process of another user"
    return DoctorFinding(
        check, FindingState.WARN, f"in use by {holder}; the default of {user}; runs pick a free port", fix
    )


def _is_free(number: int) -> bool:
    with closing(socket.socket()) as probe:
        # As servers bind: a socket in TIME_WAIT does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return False
    return True


def _port_holder(number: int) -> str | None:
    """The name and pid of the process that listens on a port. Its arguments may contain secrets and are not read."""
    if not Path("/proc/net/tcp").exists():
        return _holder_by_lsof(number)
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(number)}
    for folder in Path("/proc").glob("[0-9]*"):
        # Processes of other users are unreadable, and a process may end meanwhile.
        with suppress(OSError):
            if any(str(link.readlink()) in sockets for link in (folder / "fd").iterdir()):
                return f"{(folder / 'comm').read_text().strip()} (process {folder.name})"
    return None


def _listening_inodes(number: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == number:
                    yield fields[9]


def _holder_by_lsof(number: int) -> str | None:
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["lsof", "-nP", f"-iTCP:{number}", "-sTCP:LISTEN", "-Fpc"]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.split()
        fields = {line[0]: line[1:] for line in lines}
        return f"{fields['c']} (process {fields['p']})" if {"c", "p"} <= fields.keys() else None
    return None


def _disk_space(check: str, folder: Path, recommended: int, fix: str) -> DoctorFinding:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    what = f"{free / GB:.1f} GB free at {folder}"
    if not os.access(existing, os.W_OK):
        return DoctorFinding(check, FindingState.MISSING, f"{folder} is not writable", fix)
    if free < MIN_DISK:
        return DoctorFinding(check, FindingState.MISSING, f"{what}: not enough for a run", fix)
    if free < recommended:
        return DoctorFinding(check, FindingState.WARN, f"{what}; a run may need {recommended / GB:.0f} GB", fix)
    return DoctorFinding(check, FindingState.OK, what)

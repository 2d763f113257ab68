"""Where a chaos takes place: namespaces of its own for network, mounts and processes, and a small disk in them.

Always true: nothing in here reaches the machine's own network, and all of it is gone when its first process is: the
loopback, the mounts, and every process that was started.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hermes_rl.sandbox.process_tree import all_pids
from tests.chaos.trajectory.grounds import Disk

CHECKOUT = Path(__file__).parents[3]
MEGABYTES = 384
# The shell takes in whatever loses its parent.
INSIDE = 'ip link set lo up && "$@"; exit $?'
NEEDED = {
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "ip": "iproute2",
    "tc": "iproute2",
    "iptables": "iptables",
    "bwrap": "bubblewrap",
}


def inside(*words: str) -> list[str]:
    """The command that runs Python in there."""
    namespaces = ["--net", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
    # Whoever waits for it may be killed too, and would leave it behind.
    with_us = ["setpriv", "--pdeathsig", "KILL"]
    return [*with_us, "unshare", *namespaces, "bash", "-c", INSIDE, "chaos", sys.executable, *words]


def small_disk(place: Path) -> Disk:
    mount("tmpfs", place, f"size={MEGABYTES}m,mode=755")
    return Disk(place)


def mount(kind: str, place: Path, options: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", kind, "-o", options, kind, str(place)], check=True)


def others(pids: Sequence[int] | None = None) -> dict[int, str]:
    """The processes in here but the chaos itself, by their commands; the remains of ended ones do not count."""
    mine = {1, os.getpid()}
    found = {}
    for pid in all_pids() if pids is None else pids:
        command = commanded(pid)
        if pid not in mine and command:
            found[pid] = command
    return found


def commanded(pid: int) -> str:
    """The words of a process; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""

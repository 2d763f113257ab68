"""Control groups: one per sandbox, to limit its memory, CPU and number of processes.

cgroup v1 has a tree per controller, v2 one tree for all; each controller is in exactly one of them. Root can use both,
an ordinary user needs a delegated v2 subtree. `available` creates and enters a real group to find out which limits can
be enforced here.
"""

import asyncio
import logging
import os
import re
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.sandbox.process_tree import send_signal
from hermes_rl.sandbox.spec import Limits

_log = logging.getLogger(__name__)

# Parent of all sandbox groups in v2. It is created with the first and removed with the last.
PARENT = "hermes-rl"
# For the guest agent and its helpers: a sandbox at its process limit must still be able to kill its processes.
SPARE_PROCESSES = 32

_PERIOD = 100_000
_MB = 1024 * 1024
# On a busy machine, killed processes take seconds to disappear.
_REMOVE_TIMEOUT = 20.0
_ATTEMPTS = 5
# Limit -> controller that enforces it.
_CONTROLLERS = {"memory_mb": "memory", "cpus": "cpu", "processes": "pids"}
_PROBE = Limits(memory_mb=64, cpus=0.1, processes=64)


@dataclass(frozen=True, slots=True)
class CgroupParent:
    """A directory in which groups can be created, and its cgroup version."""

    directory: Path
    version: int


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """Where this process can create groups: a parent per enforceable limit (in v2 the same parent for all)."""

    parents: Mapping[str, CgroupParent]

    @property
    def limits(self) -> frozenset[str]:
        return frozenset(self.parents)

    def groups(self, name: str, limits: Limits) -> list[Path]:
        """The directories that `create` will create."""
        parents = [self.parents[limit].directory for limit in limits.named() if limit in self.parents]
        return [parent / name for parent in dict.fromkeys(parents)]

    def create(self, name: str, limits: Limits, *, extra_memory_mb: int = 0) -> list[Path]:
        """Create the groups of one sandbox and set its limits. Returns the directories that its processes must join.

        `extra_memory_mb` is for files on tmpfs, which the kernel counts as memory.
        """
        groups = self.groups(name, limits)
        for group in groups:
            _make_group(group)
        for limit, value in limits.named().items():
            if parent := self.parents.get(limit):
                extra = {"memory_mb": extra_memory_mb, "processes": SPARE_PROCESSES}.get(limit, 0)
                _set_limit(parent.directory / name, parent.version, limit, value + extra)
        return groups


async def remove(groups: Sequence[Path]) -> list[Path]:
    """Kill all processes in the groups and remove them. Never raises; logs and returns groups that remain."""
    pause, end = 0.001, time.monotonic() + _REMOVE_TIMEOUT
    while left := [group for group in groups if not _try_remove(group)]:
        if time.monotonic() > end:
            _log.warning("cannot remove control groups: %s", ", ".join(map(str, left)))
            return left
        send_signal(member_pids(left))
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return []


def member_pids(groups: Sequence[Path]) -> list[int]:
    pids: set[int] = set()
    for group in groups:
        with suppress(OSError):
            pids.update(map(int, (group / "cgroup.procs").read_text().split()))
    return sorted(pids)


def oom_kills(groups: Sequence[Path]) -> int:
    """How many processes of the groups the kernel has killed because their memory limit was reached."""
    lines: list[str] = []
    for file in [group / name for group in groups for name in ("memory.events", "memory.oom_control")]:
        with suppress(OSError):
            lines += file.read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def available(proc: Path = Path("/proc/self")) -> ControlGroups:
    """The limits that can be enforced here; empty if no group can be created."""
    mounts = parse_mountinfo((proc / "mountinfo").read_text())
    own = parse_own_groups((proc / "cgroup").read_text())
    parents: dict[str, CgroupParent] = {}
    for limit, controller in _CONTROLLERS.items():
        for mount in mounts:
            if mount.version == 1 and controller in mount.controllers and controller in own:
                parent = CgroupParent(mount.path_of(own[controller]), 1)
                if _can_enforce(parent, limit):
                    parents[limit] = parent
                    break
    # Controllers that v1 does not have are in v2.
    wanted = [limit for limit, controller in _CONTROLLERS.items() if controller not in own]
    for mount in mounts:
        if mount.version == 2 and wanted and "" in own:
            parents |= _find_v2_parents(candidate_parents(mount, own[""]), wanted)
            break
    return ControlGroups(parents)


# --- finding parents ---


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A mounted cgroup tree: mount point, the subtree it shows, and for v1 its controllers."""

    directory: Path
    root: str
    version: int
    controllers: frozenset[str] = frozenset()

    def path_of(self, group: str) -> Path:
        """The path of a group under this mount; the mount point if the mount does not show that group."""
        root = self.root.rstrip("/")
        if ".." in group.split("/") or not f"{group}/".startswith(f"{root}/"):
            return self.directory
        return self.directory / group.removeprefix(root).lstrip("/")


def parse_mountinfo(mountinfo: str) -> list[CgroupMount]:
    """The cgroup mounts listed in /proc/self/mountinfo."""
    mounts = []
    for line in mountinfo.splitlines():
        mount, _, filesystem_part = line.partition(" - ")
        root, directory = (_unescape(word) for word in mount.split(" ")[3:5])
        filesystem, _, options = filesystem_part.split(" ", 2)
        if filesystem == "cgroup2":
            mounts.append(CgroupMount(Path(directory), root, 2))
        elif filesystem == "cgroup":
            mounts.append(
                CgroupMount(Path(directory), root, 1, frozenset(options.split(",")) & set(_CONTROLLERS.values()))
            )
    return mounts


def parse_own_groups(cgroup: str) -> dict[str, str]:
    """This process's group by controller, with "" for v2, from /proc/self/cgroup."""
    lines = (line.split(":", 2) for line in cgroup.splitlines())
    return {controller: path for _, controllers, path in lines for controller in controllers.split(",")}


def candidate_parents(mount: CgroupMount, own: str) -> list[Path]:
    """The v2 groups that could be our parent, best first: those with all controllers, then the nearest.

    Only a group without processes of its own, or the root, can delegate controllers. So never our own group.
    """
    ancestors = [group for group in mount.path_of(own).parents if group.is_relative_to(mount.directory)]
    usable = [group for group in ancestors or [mount.directory] if os.access(group, os.W_OK) and _can_delegate(group)]
    return sorted(usable, key=lambda group: len(_missing_controllers(group)))


def _can_delegate(group: Path) -> bool:
    # Only the real root group has no cgroup.type; the root that a container sees has one.
    return not (group / "cgroup.type").exists() or not member_pids([group])


def _missing_controllers(group: Path) -> set[str]:
    with suppress(OSError):
        return set(_CONTROLLERS.values()) - set((group / "cgroup.controllers").read_text().split())
    return set(_CONTROLLERS.values())


def _find_v2_parents(candidates: Sequence[Path], wanted: Sequence[str]) -> dict[str, CgroupParent]:
    best: dict[str, CgroupParent] = {}
    for base in candidates:
        parent = CgroupParent(base / PARENT, 2)
        enforceable = {limit: parent for limit in wanted if _can_enforce(parent, limit)}
        best = max(best, enforceable, key=len)
        if len(best) == len(wanted):
            break
    return best


def _unescape(word: str) -> str:
    """The kernel writes spaces and the like as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


# --- creating and removing ---


def _make_group(group: Path) -> None:
    """Create a group, and its parent if that is ours and another process has just removed it."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            group.mkdir()
            return
        if group.parent.name == PARENT:
            with suppress(FileExistsError):
                group.parent.mkdir()
            for ancestor in (group.parent.parent, group.parent):
                _delegate_controllers(ancestor)
    raise FileNotFoundError(f"{group.parent} is gone")


def _delegate_controllers(group: Path) -> None:
    for controller in _CONTROLLERS.values():
        # A missing controller is detected later, by _can_enforce.
        with suppress(OSError):
            _write(group / "cgroup.subtree_control", f"+{controller}")


def _try_remove(group: Path) -> bool:
    """Remove a group, and its parent if that is ours and now empty. Returns whether the group is gone."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    if group.parent.name == PARENT:
        with suppress(OSError):
            group.parent.rmdir()
    return True


def _can_enforce(parent: CgroupParent, limit: str) -> bool:
    """Whether a group with this limit can be created there and our process can enter it."""
    probe = parent.directory / f"{PARENT}-probe-{secrets.token_hex(4)}"
    try:
        _make_group(probe)
        _set_limit(probe, parent.version, limit, _PROBE.named()[limit])
        enter = ["/bin/sh", "-c", 'echo 0 > "$1/cgroup.procs"', "sh", str(probe)]
        return subprocess.run(enter, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False
    finally:
        for _ in range(_ATTEMPTS):
            if _try_remove(probe):
                break
            time.sleep(0.002)


def _set_limit(group: Path, version: int, limit: str, value: float) -> None:
    for file, text in _limit_files(limit, value, version).items():
        try:
            _write(group / file, text)
        except FileNotFoundError:
            # Swap accounting is optional in the kernel; without swap there is nothing to limit.
            if "sw" not in file:
                raise


def _write(path: Path, text: str) -> None:
    # No O_CREAT: a missing control file must raise FileNotFoundError.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _limit_files(limit: str, value: float, version: int) -> dict[str, str]:
    if limit == "cpus":
        quota = str(max(int(value * _PERIOD), 1000))
        if version == 2:
            return {"cpu.max": f"{quota} {_PERIOD}"}
        return {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": quota}
    if limit == "processes":
        return {"pids.max": str(int(value))}
    amount = str(int(value) * _MB)
    if version == 2:
        return {"memory.max": amount, "memory.swap.max": "0"}
    return {"memory.limit_in_bytes": amount, "memory.memsw.limit_in_bytes": amount}

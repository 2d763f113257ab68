"""Control groups: one a sandbox, by which the kernel holds its memory, processor and number of processes.

Version 1 has a tree for each controller, version 2 one for all; a controller is in one of them. As root both work, an
ordinary user needs a part of version 2 that was delegated to them. `available` really makes a group and enters it to
find out what can be held here.
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

# In version 2 the groups of all sandboxes are below one of this name, which comes and goes with them.
PARENT = "hermes-rl"
# For the warden and its helpers, or a sandbox that is full could not even be told to kill what fills it.
SPARE_PROCESSES = 32

_PERIOD = 100_000
_MB = 1024 * 1024
# On a machine that is busy killed processes take seconds to be gone.
_REMOVE_TIME = 20.0
_ROUNDS = 5
# Which limit needs which controller.
_CONTROLLERS = {"memory_mb": "memory", "cpus": "cpu", "processes": "pids"}
_PROBE = Limits(memory_mb=64, cpus=0.1, processes=64)


@dataclass(frozen=True, slots=True)
class Place:
    """A directory in which groups can be made, by the rules of that version."""

    directory: Path
    version: int


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """Where this process can make groups: a place for each limit that can be held, in version 2 the same for all."""

    places: Mapping[str, Place]

    @property
    def limits(self) -> frozenset[str]:
        return frozenset(self.places)

    def groups(self, name: str, limits: Limits) -> list[Path]:
        """The directories that `make` will make."""
        places = [self.places[limit].directory for limit in limits.named() if limit in self.places]
        return [place / name for place in dict.fromkeys(places)]

    def make(self, name: str, limits: Limits, *, extra_memory_mb: int = 0) -> list[Path]:
        """Make the groups of one sandbox and set its limits; the directories that its processes must join.

        `extra_memory_mb` is for files that are kept in memory, which the kernel counts too.
        """
        groups = self.groups(name, limits)
        for group in groups:
            _make(group)
        for limit, value in limits.named().items():
            if place := self.places.get(limit):
                more = {"memory_mb": extra_memory_mb, "processes": SPARE_PROCESSES}.get(limit, 0)
                _set_limit(place.directory / name, place.version, limit, value + more)
        return groups


async def remove(groups: Sequence[Path]) -> list[Path]:
    """Kill what is still in some groups and remove them. Never raises; those that stay are logged and returned."""
    pause, end = 0.001, time.monotonic() + _REMOVE_TIME
    while left := [group for group in groups if not _removed(group)]:
        if time.monotonic() > end:
            _log.warning("control groups could not be removed: %s", ", ".join(map(str, left)))
            return left
        send_signal(members(left))
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return []


def members(groups: Sequence[Path]) -> list[int]:
    """The processes in some groups."""
    found: set[int] = set()
    for group in groups:
        with suppress(OSError):
            found.update(map(int, (group / "cgroup.procs").read_text().split()))
    return sorted(found)


def available(proc: Path = Path("/proc/self")) -> ControlGroups:
    """What can be held here; no places where no group can be made."""
    mounts = mounted((proc / "mountinfo").read_text())
    own = own_groups((proc / "cgroup").read_text())
    places: dict[str, Place] = {}
    for limit, controller in _CONTROLLERS.items():
        for mount in mounts:
            if mount.version == 1 and controller in mount.controllers and controller in own:
                place = Place(mount.below(own[controller]), 1)
                if _can_hold(place, limit):
                    places[limit] = place
                    break
    # What version 1 does not have is in version 2.
    wanted = [limit for limit, controller in _CONTROLLERS.items() if controller not in own]
    for mount in mounts:
        if mount.version == 2 and wanted and "" in own:
            places |= _version_2(bases(mount, own[""]), wanted)
            break
    return ControlGroups(places)


# --- where groups can be ---


@dataclass(frozen=True, slots=True)
class Mount:
    """A tree of groups: where it is mounted, which part of it, and for version 1 of which controllers."""

    directory: Path
    root: str
    version: int
    controllers: frozenset[str] = frozenset()

    def below(self, group: str) -> Path:
        """Where a group of the tree is seen; the top for one that this mount does not show."""
        root = self.root.rstrip("/")
        if ".." in group.split("/") or not f"{group}/".startswith(f"{root}/"):
            return self.directory
        return self.directory / group.removeprefix(root).lstrip("/")


def mounted(mountinfo: str) -> list[Mount]:
    """The trees of groups in what the kernel says of all mounts (/proc/self/mountinfo)."""
    found = []
    for line in mountinfo.splitlines():
        about, _, kind = line.partition(" - ")
        root, directory = (_unescaped(word) for word in about.split(" ")[3:5])
        filesystem, _, options = kind.split(" ", 2)
        if filesystem == "cgroup2":
            found.append(Mount(Path(directory), root, 2))
        elif filesystem == "cgroup":
            found.append(Mount(Path(directory), root, 1, frozenset(options.split(",")) & set(_CONTROLLERS.values())))
    return found


def own_groups(cgroup: str) -> dict[str, str]:
    """Our own group by controller, with "" for version 2, in what the kernel says of them (/proc/self/cgroup)."""
    lines = (line.split(":", 2) for line in cgroup.splitlines())
    return {controller: path for _, controllers, path in lines for controller in controllers.split(",")}


def bases(mount: Mount, own: str) -> list[Path]:
    """The groups of version 2 below which ours could be, best first: near to us, and with all the controllers.

    Controllers are handed on only by a group that has no process of its own, or is the root of all. So not our own.
    """
    ours = mount.below(own)
    above = [one for one in ours.parents if one.is_relative_to(mount.directory)]
    free = [one for one in above or [mount.directory] if os.access(one, os.W_OK) and _hands_on(one)]
    return sorted(free, key=lambda one: len(_lacking(one)))


def _hands_on(group: Path) -> bool:
    # Only the root of all groups has no type. That of a container looks like it and is none.
    return not (group / "cgroup.type").exists() or not members([group])


def _lacking(group: Path) -> set[str]:
    with suppress(OSError):
        return set(_CONTROLLERS.values()) - set((group / "cgroup.controllers").read_text().split())
    return set(_CONTROLLERS.values())


def _version_2(candidates: Sequence[Path], wanted: Sequence[str]) -> dict[str, Place]:
    best: dict[str, Place] = {}
    for base in candidates:
        place = Place(base / PARENT, 2)
        held = {limit: place for limit in wanted if _can_hold(place, limit)}
        best = max(best, held, key=len)
        if len(best) == len(wanted):
            break
    return best


def _unescaped(word: str) -> str:
    """Spaces and the like are written as their octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


# --- making and removing ---


def _make(group: Path) -> None:
    """Make a group, with the one above it if that is ours and another process just removed it."""
    for _ in range(_ROUNDS):
        with suppress(FileNotFoundError):
            group.mkdir()
            return
        if group.parent.name == PARENT:
            with suppress(FileExistsError):
                group.parent.mkdir()
            for one in (group.parent.parent, group.parent):
                _hand_on(one)
    raise FileNotFoundError(f"{group.parent} is gone")


def _hand_on(group: Path) -> None:
    for controller in _CONTROLLERS.values():
        # One that is not here cannot be held, which is then found out.
        with suppress(OSError):
            _write(group / "cgroup.subtree_control", f"+{controller}")


def _removed(group: Path) -> bool:
    """Whether a group could be removed, and with it the one above it if that is ours and has no other."""
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


def _can_hold(place: Place, limit: str) -> bool:
    """Whether a group with this limit can be made there and entered, tried with a process of our own."""
    probe = place.directory / f"{PARENT}-probe-{secrets.token_hex(4)}"
    try:
        _make(probe)
        _set_limit(probe, place.version, limit, _PROBE.named()[limit])
        enter = ["/bin/sh", "-c", 'echo 0 > "$1/cgroup.procs"', "sh", str(probe)]
        return subprocess.run(enter, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False
    finally:
        for _ in range(_ROUNDS):
            if _removed(probe):
                break
            time.sleep(0.002)


def _set_limit(group: Path, version: int, limit: str, value: float) -> None:
    for file, text in _settings(limit, value, version).items():
        try:
            _write(group / file, text)
        except FileNotFoundError:
            # Swap is accounted for only where the kernel was told to; without swap there is nothing to bound.
            if "sw" not in file:
                raise


def _write(path: Path, text: str) -> None:
    # Not to be created: where a file is missing, that is what the error shall say.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _settings(limit: str, value: float, version: int) -> dict[str, str]:
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

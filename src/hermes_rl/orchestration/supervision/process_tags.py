"""How to find the processes of a run: their files, their locks, and an environment variable that children inherit.

Always true: a process belongs to a run only when it carries the run's tag.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TAG_VARIABLE = "HERMES_RL_PART"
"""Holds the component's folder; every process that a component starts inherits it."""
LAUNCH_FILE = "order.json"
"""The launch spec: what a shim should start."""


def shim_status_path(folder: Path) -> Path:
    """Where a shim reports on itself and its component."""
    return folder / "note.json"


def untagged_environ() -> dict[str, str]:
    """This process's environment for a process in another working directory: untagged, with absolute paths."""
    environ = {name: value for name, value in os.environ.items() if name != TAG_VARIABLE}
    if home := environ.get("HERMES_HOME"):
        environ["HERMES_HOME"] = str(Path(home).absolute())
    if path := environ.get("PYTHONPATH"):
        environ["PYTHONPATH"] = os.pathsep.join(str(Path(folder).absolute()) for folder in path.split(os.pathsep))
    return environ


def try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_is_free(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if not try_lock(file):
            return False
        # Closing is not enough: a concurrent fork may have inherited the file.
        fcntl.flock(file, fcntl.LOCK_UN)
        return True
    finally:
        os.close(file)


def tagged_processes(folder: Path) -> list[int]:
    """The pids of live processes tagged with this component's folder, or with a folder below it."""
    found = []
    exact = f"{TAG_VARIABLE}={folder}".encode()
    for pid in _all_pids():
        with suppress(OSError):
            for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if word == exact or word.startswith(exact + b"/"):
                    found.append(pid)
                    break
    return [pid for pid in found if pid != os.getpid()]


def _all_pids() -> Iterator[int]:
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)

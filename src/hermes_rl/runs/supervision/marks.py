"""How the processes of a run are known: by the files they leave, the locks they hold, and a variable they inherit.

Always true: only what bears a run's mark is ever taken for a part of it.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "HERMES_RL_PART"
"""The variable with the part's folder; whatever a part starts inherits it."""
ORDER = "order.json"
"""What a keeper is to start."""


def note_of(folder: Path) -> Path:
    """What a keeper says of itself and its part."""
    return folder / "note.json"


def unmarked_environ() -> dict[str, str]:
    """The variables of this process for one that is started elsewhere: without its mark, paths made absolute."""
    kept = {name: value for name, value in os.environ.items() if name != MARK}
    if home := kept.get("HERMES_HOME"):
        kept["HERMES_HOME"] = str(Path(home).absolute())
    if path := kept.get("PYTHONPATH"):
        kept["PYTHONPATH"] = os.pathsep.join(str(Path(folder).absolute()) for folder in path.split(os.pathsep))
    return kept


def is_free(file: int, *, keep: bool = False) -> bool:
    """Whether nobody holds the lock on an open file; `keep` takes it then."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if not keep:
        fcntl.flock(file, fcntl.LOCK_UN)
    return True


def lock_is_free(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return is_free(file)
    finally:
        os.close(file)


def marked(folder: Path) -> list[int]:
    """The living processes that bear the mark of this part's folder, or of any below it."""
    found = []
    exact = f"{MARK}={folder}".encode()
    for pid in _processes():
        with suppress(OSError):
            for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if word == exact or word.startswith(exact + b"/"):
                    found.append(pid)
                    break
    return [pid for pid in found if pid != os.getpid()]


def children_of(parent: int) -> list[int]:
    """The living children of a process."""
    found = []
    for pid in _processes():
        with suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == parent and fields[0] not in "ZX":
                found.append(pid)
    return found


def _processes() -> Iterator[int]:
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)

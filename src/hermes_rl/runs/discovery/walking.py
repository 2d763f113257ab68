"""The Python files below a folder, at any depth.

Always true: each folder is entered once, whatever links lead to it, and the walk ends: there is a bound on all it sees.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from hermes_rl.runs.discovery.found import Broken

MOST_FILES = 5_000
MOST_ENTRIES = 200_000
NOT_ENTERED = frozenset("__pycache__ node_modules site-packages dist-packages".split())


def python_files(folder: Path, most: int = MOST_FILES) -> Iterator[Path | Broken]:
    """Files in a fixed order; Broken for a folder that cannot be entered, and where the walk stopped early."""
    waiting, entered = [folder], set[tuple[int, int]]()
    files = entries = 0
    while waiting:
        here = waiting.pop()
        try:
            status = here.stat()
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            with os.scandir(here) as listing:
                children = sorted(listing, key=lambda child: child.name)
        except OSError as error:
            yield Broken(here, f"this folder cannot be entered: {error.strerror}")
            continue
        inner = []
        for child in children:
            entries += 1
            if _is_folder(child):
                if not child.name.startswith(".") and child.name not in NOT_ENTERED and not _is_venv(child):
                    inner.append(Path(child.path))
            elif child.name.endswith(".py") and not child.name.startswith("."):
                files += 1
                if files <= most:
                    yield Path(child.path)
        if files > most or entries > MOST_ENTRIES:
            bound = f"{most} Python files" if files > most else f"{MOST_ENTRIES} entries"
            yield Broken(folder, f"it has more than {bound}, and the rest was not looked at; name narrower folders")
            return
        waiting.extend(reversed(inner))


def _is_folder(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir()
    except OSError:
        return False


def _is_venv(child: os.DirEntry[str]) -> bool:
    try:
        return Path(child.path, "pyvenv.cfg").is_file()
    except OSError:
        return False

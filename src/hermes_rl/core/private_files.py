"""Files and folders that only their owner can read: groups, databases, evaluations, runs, logs.

Always true: a folder made here has mode 0700 and a file 0600, whatever the umask; what exists keeps its mode. The umask
of the process is never changed: sandboxes, engines and the program that uses us as a library would inherit it.
What a user exports (`export`, `report`, `init`) follows the umask instead.
"""

import os
from contextlib import suppress
from pathlib import Path

from hermes_rl.core.paths import hermes_home, rl_home

FOLDER_MODE, FILE_MODE = 0o700, 0o600
# May be entered by others, not listed: with HERMES_HOME set, root's sandboxes run as other users, with images in it.
HOME_MODE = 0o711


def private_folder(path: Path) -> Path:
    """Create a folder and its missing parents; returns its path."""
    homes = {hermes_home().absolute(), rl_home().absolute()}
    missing = []
    for folder in (path, *path.parents):
        if folder.exists():
            break
        missing.append(folder)
    for folder in reversed(missing):
        folder.mkdir(FOLDER_MODE, exist_ok=True)
        if folder.absolute() in homes:
            folder.chmod(HOME_MODE)
    path.mkdir(FOLDER_MODE, exist_ok=True)
    return path


def open_private(path: str | Path, flags: int) -> int:
    """`os.open`, also as the `opener` of `open`."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def create_private(path: Path) -> None:
    """Create an empty file for a library that would create it with the umask. An existing one is not even opened."""
    with suppress(FileExistsError):
        os.close(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def write_private(path: Path, data: bytes) -> None:
    with open(path, "wb", opener=open_private) as file:
        file.write(data)

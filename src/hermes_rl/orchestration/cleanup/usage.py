"""Measure the disk usage of items, and find the processes that use them.

Always true: symbolic links are not followed; what this user may not read is skipped.
"""

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hermes_rl.orchestration.cleanup.plan import DiskItem

BLOCK = 512
# Environment variables that may be the only trace of a folder that the process uses.
FOLDER_VARIABLES = (b"VIRTUAL_ENV=", b"JAX_COMPILATION_CACHE_DIR=", b"HERMES_RL_PART=")


def measure(item: DiskItem) -> DiskItem:
    """The item with its size as `du` counts it and the time of its last use."""
    total, links, newest = 0, {}, item.last_used
    for status in _entries(item.paths):
        size = status.st_blocks * BLOCK
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            links[status.st_dev, status.st_ino] = size
        else:
            total += size
        newest = max(newest, status.st_mtime)
    if item.used is not None:
        with suppress(OSError):
            newest = item.used.lstat().st_mtime
    shared = frozenset((device, inode, size) for (device, inode), size in links.items())
    return replace(item, bytes=item.bytes + total + sum(links.values()), links=shared, last_used=newest)


def _entries(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    pending = []
    for path in paths:
        with suppress(OSError):
            yield (status := path.lstat())
            if stat.S_ISDIR(status.st_mode):
                pending.append(str(path))
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)


def holders(items: Iterable[DiskItem]) -> dict[Path, str]:
    """The items' paths that are in use, and by what."""
    paths = {path for item in items for path in item.paths}
    if not paths:
        return {}
    # Arguments contain a path as it was typed; the kernel resolves links.
    known = {f"{base}/{path.name}": path for path in paths for base in (path.parent, path.parent.resolve())}
    # Longest first: one folder of items may be inside another.
    bases = sorted({name.rpartition("/")[0] for name in known}, key=len, reverse=True)
    pattern = re.compile(b"(?:%b)/[\\w.+-]+" % b"|".join(re.escape(os.fsencode(base)) for base in bases))
    found = {}
    for holder, text in _usage_texts():
        for name in set(pattern.findall(text)):
            if path := known.get(os.fsdecode(name)):
                found[path] = holder
    return found


def _usage_texts() -> Iterator[tuple[str, bytes]]:
    """Paths that each process has in its arguments, open or mapped; and the mount points."""
    yield "this Python", sys.prefix.encode()
    if not Path("/proc/self/mountinfo").exists():
        listed = subprocess.run(["ps", "-axww", "-o", "command="], capture_output=True, check=False, timeout=30)
        yield "a process", listed.stdout
        return
    yield "a mount", b"\n".join(line.split()[4] for line in Path("/proc/self/mountinfo").read_bytes().splitlines())
    ours = set(_ancestors())
    for folder in Path("/proc").glob("[0-9]*"):
        # A process may end meanwhile, and those of other users are unreadable.
        with suppress(OSError):
            holder = f"{(folder / 'comm').read_text(errors='replace').strip()} (process {folder.name})"
            yield holder, b"\n".join(_process_paths(folder, arguments=int(folder.name) not in ours))


def _process_paths(folder: Path, *, arguments: bool) -> Iterator[bytes]:
    if arguments:
        yield (folder / "cmdline").read_bytes().replace(b"\0", b"\n")
    with suppress(OSError):
        variables = (folder / "environ").read_bytes().split(b"\0")
        yield from (variable for variable in variables if variable.startswith(FOLDER_VARIABLES))
        for link in (folder / "cwd", folder / "exe", *(folder / "fd").iterdir()):
            with suppress(OSError):
                yield os.fsencode(link.readlink())
        yield (folder / "maps").read_bytes()


def _ancestors() -> Iterator[int]:
    """This process and its ancestors: their arguments may name the items to remove."""
    pid = os.getpid()
    while pid > 0:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            return

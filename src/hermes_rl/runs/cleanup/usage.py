"""How much of the disk a tree takes, and which processes use it.

Always true: no symbolic link is followed; what this user may not read is skipped.
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

from hermes_rl.runs.cleanup.plan import Item

BLOCK = 512
# Environment variables with a folder that the process uses, which may show nowhere else.
NAMING = (b"VIRTUAL_ENV=", b"JAX_COMPILATION_CACHE_DIR=", b"HERMES_RL_PART=")


def measured(item: Item) -> Item:
    """The item with its bytes as `du` counts them and the time of its last use."""
    total, links, newest = 0, {}, item.last_used
    for seen in _entries(item.paths):
        size = seen.st_blocks * BLOCK
        if seen.st_nlink > 1 and not stat.S_ISDIR(seen.st_mode):
            links[seen.st_dev, seen.st_ino] = size
        else:
            total += size
        newest = max(newest, seen.st_mtime)
    if item.used is not None:
        with suppress(OSError):
            newest = item.used.lstat().st_mtime
    shared = frozenset((device, inode, size) for (device, inode), size in links.items())
    return replace(item, bytes=item.bytes + total + sum(links.values()), links=shared, last_used=newest)


def _entries(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    waiting = []
    for path in paths:
        with suppress(OSError):
            yield (seen := path.lstat())
            if stat.S_ISDIR(seen.st_mode):
                waiting.append(str(path))
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)


def holders(items: Iterable[Item]) -> dict[Path, str]:
    """Which of the items' paths are in use, and by what."""
    paths = {path for item in items for path in item.paths}
    if not paths:
        return {}
    # Arguments have a path as it was typed; the kernel resolves links.
    known = {f"{base}/{path.name}": path for path in paths for base in (path.parent, path.parent.resolve())}
    # The longest first: one folder of items may be inside another.
    bases = sorted({name.rpartition("/")[0] for name in known}, key=len, reverse=True)
    pattern = re.compile(b"(?:%b)/[\\w.+-]+" % b"|".join(re.escape(os.fsencode(base)) for base in bases))
    found = {}
    for who, text in _texts():
        for name in set(pattern.findall(text)):
            if path := known.get(os.fsdecode(name)):
                found[path] = who
    return found


def _texts() -> Iterator[tuple[str, bytes]]:
    """What each process names, has open or has mapped; and the mount points."""
    yield "this Python", sys.prefix.encode()
    if not Path("/proc/self/mountinfo").exists():
        listed = subprocess.run(["ps", "-axww", "-o", "command="], capture_output=True, check=False, timeout=30)
        yield "a process", listed.stdout
        return
    yield "a mount", b"\n".join(line.split()[4] for line in Path("/proc/self/mountinfo").read_bytes().splitlines())
    ours = set(_ancestors())
    for folder in Path("/proc").glob("[0-9]*"):
        # Processes end while we look, and those of other users are closed to us.
        with suppress(OSError):
            who = f"{(folder / 'comm').read_text(errors='replace').strip()} (process {folder.name})"
            yield who, b"\n".join(_words(folder, arguments=int(folder.name) not in ours))


def _words(folder: Path, *, arguments: bool) -> Iterator[bytes]:
    if arguments:
        yield (folder / "cmdline").read_bytes().replace(b"\0", b"\n")
    with suppress(OSError):
        yield from (word for word in (folder / "environ").read_bytes().split(b"\0") if word.startswith(NAMING))
        for link in (folder / "cwd", folder / "exe", *(folder / "fd").iterdir()):
            with suppress(OSError):
                yield os.fsencode(link.readlink())
        yield (folder / "maps").read_bytes()


def _ancestors() -> Iterator[int]:
    """This process and its ancestors, whose arguments name what is to be removed."""
    pid = os.getpid()
    while pid > 0:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            return

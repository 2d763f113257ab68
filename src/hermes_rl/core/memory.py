"""How much memory this process may still take."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def free_memory() -> int | None:
    """The free memory of the machine or of our cgroup, whichever is less."""
    free = list(_free_in_cgroups())
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024)
    with suppress(OSError, ValueError):
        free.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(free, default=None)


def _free_in_cgroups() -> Iterator[int]:
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        # The limit may be `max`, which is not a number.
        with suppress(OSError, ValueError):
            yield max(int(Path(folder, limit).read_text()) - int(Path(folder, used).read_text()), 0)

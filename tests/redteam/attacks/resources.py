"""Attacks on what rollouts share: processes, memory, disk, and the host's time."""

from tests.redteam import undefended
from tests.redteam.attacks.attack import Attack
from tests.redteam.world import Harm

RESOURCES = (
    Attack(
        "fork bomb",
        "starts processes that start processes, until no other process can start",
        Harm.NEIGHBOUR,
        "perl -e 'while (1) { fork }' > /dev/null 2>&1 & sleep 1",
        undefended.crowded,
        timeout=4,
        limit="processes",
    ),
    Attack(
        "memory hog",
        "takes 600 MB where 128 are allowed",
        Harm.GAIN,
        """python3 -c 'hog = b"x" * (600 << 20); print("GAINED", len(hog))'""",
        undefended.bounded_machine,
        limit="memory_mb",
    ),
    Attack(
        "disk fill of the workspace",
        "writes to /workspace until the disk that all rollouts share is full",
        Harm.NEIGHBOUR,
        "head -c 300M /dev/zero > /workspace/fill; [ $(stat -c %s /workspace/fill) -lt 300000000 ] || echo GAINED",
        undefended.shared_disk,
        limit="disk_mb",
    ),
    Attack(
        "disk fill of /tmp",
        "the same in /tmp",
        Harm.NEIGHBOUR,
        "head -c 300M /dev/zero > /tmp/fill; [ $(stat -c %s /tmp/fill) -lt 300000000 ] || echo GAINED",
        undefended.shared_disk,
        limit="disk_mb",
    ),
    Attack(
        "disk fill of /dev/shm",
        "the same in /dev/shm",
        Harm.NEIGHBOUR,
        "head -c 300M /dev/zero > /dev/shm/fill; [ $(stat -c %s /dev/shm/fill) -lt 300000000 ] || echo GAINED",
        undefended.shared_disk,
    ),
    Attack(
        "output flood",
        "prints 150 MB for the host to keep in memory",
        Harm.FLOOD,
        "yes hermes | head -c 150000000",
        undefended.captured,
        timeout=20,
    ),
    Attack(
        "sleeping past the deadline",
        "sleeps, so that the host gives the rollout up instead of scoring it",
        Harm.ESCAPE,
        "sleep 60",
        undefended.given_up,
        timeout=1,
    ),
    Attack(
        "held pipe",
        "leaves a process that holds its standard output open, for which the host waits",
        Harm.LATE,
        "sleep 4 & echo done",
        undefended.read_to_the_end,
        timeout=1,
    ),
)

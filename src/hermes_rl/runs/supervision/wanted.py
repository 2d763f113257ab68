"""What people want of a run: the file that commands write and its supervisor reads.

Always true: it can be written on a full disk, and two who write at once do not mix; each attempt has a number.
"""

import fcntl
import os
import time
from dataclasses import asdict, dataclass

from hermes_rl.processes import Identity
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.steady import read_steadily, write_steadily
from hermes_rl.runs.supervision.lifecycle import Wanted


@dataclass(frozen=True, slots=True)
class Wish:
    wanted: Wanted = Wanted.RUN
    attempt: int = 1


def read_wish(places: RunPlaces) -> Wish:
    told = read_steadily(places.wanted)
    return Wish() if told is None else Wish(Wanted(told["wanted"]), told["attempt"])


def write_wish(places: RunPlaces, wanted: Wanted, *, another_attempt: bool = False) -> Wish:
    folder = os.open(places.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        last = read_wish(places)
        wish = Wish(wanted, last.attempt + another_attempt)
        by = asdict(Identity.of(os.getpid()))
        write_steadily(places.wanted, {"wanted": wish.wanted, "attempt": wish.attempt, "at": time.time(), "by": by})
    finally:
        os.close(folder)
    return wish

"""The files a test leaves behind for one model: its groups and its log, named as in the seed.

Always true: one test at a time writes a set of files, and finds nothing of an earlier one in it.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LONGEST = 100


@dataclass(frozen=True, slots=True)
class Outputs:
    """`log_file` is the open log, to be given to the process."""

    groups: Path
    log: Path
    log_file: int

    def finished(self) -> int:
        """How many groups are in the file."""
        try:
            return self.groups.read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


@contextmanager
def outputs(folder: Path, environment: str, model: str) -> Iterator[Outputs]:
    """The files of this test, emptied; with a number in their names while another test has the plain ones."""
    folder.mkdir(parents=True, exist_ok=True)
    own, held = _claimed(folder, f"test_{_safe(environment)}_{_safe(model)}")
    try:
        os.ftruncate(held, 0)
        for ending in ("jsonl", "metrics.jsonl", "split.json", "html"):
            (folder / f"{own}.{ending}").unlink(missing_ok=True)
        yield Outputs(folder / f"{own}.jsonl", folder / f"{own}.log", held)
    finally:
        os.close(held)


def _claimed(folder: Path, stem: str) -> tuple[str, int]:
    """A name that nobody writes under, and its log, open and locked."""
    number = 1
    while True:
        own = stem if number == 1 else f"{stem}-{number}"
        held = os.open(folder / f"{own}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            # The process inherits the lock with the file, so it holds for as long as anybody writes.
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            number += 1
        else:
            return own, held


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:LONGEST] or "unnamed"

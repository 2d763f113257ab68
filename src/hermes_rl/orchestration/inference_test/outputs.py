"""The output files of a test for one model: groups and log, named as in the seed.

Always true: only one test at a time writes a set of files, and it starts with empty ones.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.core.private_files import open_private, private_folder

MAX_NAME_LENGTH = 100


@dataclass(frozen=True, slots=True)
class Outputs:
    """`log_file` is the descriptor of the open log, for the subprocess."""

    groups: Path
    log: Path
    log_file: int

    def finished(self) -> int:
        """The number of groups in the file."""
        try:
            return self.groups.read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


@contextmanager
def open_outputs(folder: Path, environment: str, model: str) -> Iterator[Outputs]:
    """Empty files for this test, with a number in their names while another test uses the plain ones."""
    private_folder(folder)
    stem, log = _claim(folder, f"test_{_safe(environment)}_{_safe(model)}")
    try:
        os.ftruncate(log, 0)
        for suffix in ("jsonl", "metrics.jsonl", "split.json", "html"):
            (folder / f"{stem}.{suffix}").unlink(missing_ok=True)
        yield Outputs(folder / f"{stem}.jsonl", folder / f"{stem}.log", log)
    finally:
        os.close(log)


def _claim(folder: Path, stem: str) -> tuple[str, int]:
    """A file stem that no other test uses, and its log, open and locked."""
    number = 1
    while True:
        name = stem if number == 1 else f"{stem}-{number}"
        log = open_private(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            # The subprocess inherits the lock with the descriptor, so it is held as long as any process writes.
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(log)
            number += 1
        else:
            return name, log


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:MAX_NAME_LENGTH] or "unnamed"

"""What an actor of the chaos knows for certain: one line of JSON for each thing that happened, on disk at once.

Always true: a line that `write` returned from survives a kill; half a line that a kill left behind is no line, and the
next life writes none onto it.
"""

import json
import os
from pathlib import Path
from typing import Any


class Ledger:
    """Appends to one file, which has one writer, until the process ends."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.truncate(self._file, path.read_bytes().rfind(b"\n") + 1)

    def write(self, **said: Any) -> None:
        os.write(self._file, json.dumps(said).encode() + b"\n")
        os.fsync(self._file)


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]

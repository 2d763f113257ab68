"""Small JSON documents that a run's processes leave for each other, also when the disk is full.

Always true: a reader sees the document before or after a change, never half of it; once there, it can be written again
without a single block of the disk being free, since it is written over what was its last version but one.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BLOCK = 16 * 1024


def write_steadily(path: Path, document: Mapping[str, Any]) -> None:
    """One process at a time may write a document. Only the standard library: keepers use this."""
    data = json.dumps(document).encode()
    spare, held = path.with_name(f"{path.name}.spare"), path.with_name(f"{path.name}.held")
    if held.exists():
        # A writer was killed between its steps.
        if spare.exists():
            held.unlink()
        else:
            held.replace(spare)
    _fill(spare, data)
    if not path.exists():
        _fill(held, data)
        held.replace(path)
        return
    os.link(path, held)
    spare.replace(path)
    held.replace(spare)


def read_steadily(path: Path) -> dict[str, Any] | None:
    """None when it was never written. Who reads for longer than two changes take may see the third, and reads again."""
    for _ in range(3):
        try:
            told: dict[str, Any] = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            continue
        return told
    return None


def _fill(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        room = max(os.fstat(file).st_size, -(-(len(data) + 1) // BLOCK) * BLOCK)
        left = memoryview(data + b" " * (room - len(data) - 1) + b"\n")
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)

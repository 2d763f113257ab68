"""Small JSON files that the processes of a run exchange, written atomically even on a full disk.

Always true: a reader sees the file before or after a change, never half of it. Once a file exists, writing it needs no
free disk block, because each write reuses the blocks of the version before the last.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_rl.core.private_files import open_private

BLOCK = 16 * 1024


def write_atomic_json(path: Path, document: Mapping[str, Any]) -> None:
    """One process at a time may write a file. Standard library only, because the shim imports this."""
    data = json.dumps(document).encode()
    spare, held = path.with_name(f"{path.name}.spare"), path.with_name(f"{path.name}.held")
    if held.exists():
        # A writer was killed halfway.
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


def read_atomic_json(path: Path) -> dict[str, Any] | None:
    """None when it was never written. Retries, because a read that overlaps two writes may see a mix of versions."""
    for _ in range(3):
        try:
            document: dict[str, Any] = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            continue
        return document
    return None


def _fill(path: Path, data: bytes) -> None:
    file = open_private(path, os.O_WRONLY | os.O_CREAT)
    try:
        size = max(os.fstat(file).st_size, -(-(len(data) + 1) // BLOCK) * BLOCK)
        remaining = memoryview(data + b" " * (size - len(data) - 1) + b"\n")
        while remaining:
            remaining = remaining[os.write(file, remaining) :]
    finally:
        os.close(file)

"""Fuzzes one surface for some seconds, in a process that a hostile input may end.

Each input is written to the file `input` before it is executed, so that the parent process can keep one that kills
this process. One JSON object on standard output has the results.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

from tests.fuzz.readers import READERS
from tests.fuzz.servers import HTTP
from tests.fuzz.surface import CASES, Findings, Run, Surface, case_to_text, fuzz, shrink

SURFACES: dict[str, Surface] = READERS | HTTP
LARGEST_CASE = 64 * 1024


def watched(run: Run, current: Path) -> Run:
    """Write each input down before it is executed."""
    file = os.open(current, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def execute(data: bytes) -> None:
        os.pwrite(file, len(data).to_bytes(8) + data, 0)
        run(data)

    return execute


def current_input(path: Path) -> bytes:
    data = path.read_bytes() if path.exists() else b""
    return data[8 : 8 + int.from_bytes(data[:8])]


def keep(surface: str, data: bytes) -> str:
    """Keep an input as a regression case; its path below the folder of cases."""
    path = CASES / surface / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(case_to_text(data[:LARGEST_CASE]))
    return str(path.relative_to(CASES))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("surface", choices=sorted(SURFACES))
    options.add_argument("--seconds", type=float, required=True)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--folder", type=Path, required=True, help="for the file with the current input")
    options.add_argument("--keep", action="store_true", help="keep failing inputs as regression cases")
    chosen = options.parse_args()
    surface, found = SURFACES[chosen.surface], Findings()
    kept = {}
    with surface.open() as run:
        execute = watched(run, chosen.folder / "input")
        began, batch = time.monotonic(), 0
        while time.monotonic() - began < chosen.seconds:
            fuzz(surface, execute, found, chosen.seed + batch, lambda: time.monotonic() - began < chosen.seconds)
            batch += 1
        seconds = time.monotonic() - began
        for key, (defect, data) in found.defects.items():
            small = shrink(execute, data, key) if chosen.surface in READERS else data
            kept[key] = {"message": str(defect)[:2000], "case": keep(chosen.surface, small) if chosen.keep else None}
    print(
        json.dumps(
            {
                "surface": chosen.surface,
                "seed": chosen.seed,
                "seconds": round(seconds, 1),
                "executions": found.executions,
                **{str(kind): count for kind, count in found.counts.items()},
                "defects": kept,
            }
        )
    )


if __name__ == "__main__":
    main()

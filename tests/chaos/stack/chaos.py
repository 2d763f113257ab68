"""A chaos of one or many parts, which goes on where it was cut off.

Always true: a part that is over is never begun again, and its result is as it was written; one that was cut off is
begun anew, and counted.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.chaos.stack.clocks import INSTALL, LIBRARIES
from tests.chaos.stack.grounds import CHECKOUT, NEEDED, inside
from tests.chaos.stack.report import page, summed

RESULT = "result.json"


def lengths(minutes: float, part: float) -> list[float]:
    """The minutes of each part: as even as can be, none longer than `part`."""
    number = max(1, -(-round(minutes * 60) // round(part * 60)))
    return [minutes / number] * number


def missing() -> list[str]:
    """What this machine lacks, with what to install."""
    lacking = [f"{name}: apt install {package}" for name, package in NEEDED.items() if not shutil.which(name)]
    return lacking if LIBRARIES else [*lacking, INSTALL]


def carried_out(folder: Path, seed: int, parts: Sequence[float], model: Path, engine: Path) -> dict[str, Any]:
    """What all parts came to; the report lies in the folder as report.json and report.md after each."""
    told: dict[str, Any] = {}
    for number, minutes in enumerate(parts):
        place = folder / f"part-{number:02}"
        if not (place / RESULT).exists():
            _begin(place, seed, minutes, number, model, engine)
        results = [json.loads((folder / f"part-{one:02}" / RESULT).read_text()) for one in range(number + 1)]
        told = summed(results, len(list(folder.glob("part-*.cut-off-*"))))
        (folder / "report.json").write_text(json.dumps(told, indent=1) + "\n")
        (folder / "report.md").write_text(page(told))
    return told


def _begin(place: Path, seed: int, minutes: float, number: int, model: Path, engine: Path) -> None:
    if place.exists():
        before = len(list(place.parent.glob(f"{place.name}.cut-off-*")))
        place.rename(place.with_name(f"{place.name}.cut-off-{before}"))
    place.mkdir(parents=True)
    words = [str(place.absolute()), str(seed), str(minutes), str(number), str(model), str(engine)]
    subprocess.run(inside("-m", "tests.chaos.stack.part", *words), cwd=CHECKOUT, check=True)

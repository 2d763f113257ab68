"""Which lines of the package the tests ran, by package, the processes they started included."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# From here on Python counts lines at little cost; before, it doubles what tests take.
CHEAP = sys.version_info >= (3, 12)
OPTIONS = ("--cov", "--cov-report=", "--cov-fail-under=0")


def by_package(files: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Lines, and lines that ran, by the first folder below the package."""
    counted: dict[str, tuple[int, int]] = {}
    for path, entry in files.items():
        inside = path.partition("hermes_rl/")[2]
        name = inside.split("/")[0] if "/" in inside else "(single modules)"
        lines, ran = counted.get(name, (0, 0))
        counted[name] = lines + entry["summary"]["num_statements"], ran + entry["summary"]["covered_lines"]
    total = [sum(numbers) for numbers in zip(*counted.values(), strict=True)] or [0, 0]
    return dict(sorted(counted.items())) | {"all": (total[0], total[1])}


def report(folder: Path) -> tuple[int, float]:
    """Combine what the jobs of this folder counted, print it, and hold it to the limit of pyproject.toml.

    The exit status, and how many of a hundred lines ran.
    """
    data, result = f"--data-file={folder / 'all'}", folder / "covered.json"
    counted = sorted(map(str, folder.glob("*.coverage*")))
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "combine", "--quiet", data, *counted], check=True)
    subprocess.run([*coverage, "json", "--quiet", "--fail-under=0", data, "-o", str(result)], check=True)
    print(f"\n{'covered':>8} {'lines':>7}  package")
    packages = by_package(json.loads(result.read_text())["files"])
    for name, (lines, ran) in packages.items():
        print(f"{100 * ran / max(lines, 1):7.1f}% {lines:7}  {name}")
    sys.stdout.flush()
    status = subprocess.run([*coverage, "report", "--format=total", data], check=False).returncode
    lines, ran = packages["all"]
    return status, round(100 * ran / max(lines, 1), 1)

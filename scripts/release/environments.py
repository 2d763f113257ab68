"""Fresh virtual environments: made, measured, and gone when they are left.

Always true: nothing of this checkout or of the environment that runs it can be imported there; packages come at the
versions of a constraints file; an environment is removed however its trial ends.
"""

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.release.building import ROOT, ReleaseError

PINS = ROOT / "constraints"
INSTALL_S = 3600.0
STARTS_MEASURED = 5
NOT_INSTALLED_FILES = ("RECORD", "direct_url.json", "INSTALLER", "REQUESTED")


@dataclass(frozen=True, slots=True)
class Fresh:
    """An environment that holds one installation; `work` is the home and working folder of what runs in it."""

    name: str
    home: Path
    work: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def site(self) -> Path:
        (found,) = (self.home / "lib").glob("python*/site-packages")
        return found

    def packages(self) -> list[str]:
        listed = json.loads(_pip(self, "list", "--format=json"))
        return sorted(f"{one['name']}=={one['version']}" for one in listed)

    def megabytes(self) -> float:
        return sum(file.stat().st_size for file in self.site.rglob("*") if file.is_file()) / 1e6

    def seconds_to(self, program: str) -> float:
        """Median time of a whole process; the first, with a cold disk and no byte code, is not counted."""
        times = []
        for _ in range(STARTS_MEASURED + 1):
            started = time.perf_counter()
            self.run("-c", program)
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:])

    def run(self, *words: str | Path, deadline: float = 300.0, variables: Mapping[str, str] | None = None) -> str:
        """What Python says there, with these words; ReleaseError with all it said when it fails."""
        return _ran([self.python, *words], self, deadline, variables or {})

    def files(self) -> dict[str, str]:
        """What hermes-rl put here, each file with its hash."""
        ours = [self.site / "hermes_rl", *self.site.glob("hermes_rl-*.dist-info")]
        files = [*self.site.glob("_hermes_rl_imports.*"), *(file for folder in ours for file in folder.rglob("*"))]
        return {
            str(file.relative_to(self.site)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
            if file.is_file() and file.suffix != ".pyc" and file.name not in NOT_INSTALLED_FILES
        }


@contextmanager
def fresh(name: str, place: Path) -> Iterator[Fresh]:
    """An empty environment of the Python that runs this, without pip: ours installs into it."""
    home, work = place / f"env-{name}", place / f"work-{name}"
    try:
        venv.create(home, with_pip=False, symlinks=True)
        work.mkdir()
        yield Fresh(name, home, work)
    finally:
        for folder in (home, work):
            shutil.rmtree(folder, ignore_errors=True)


def install(into: Fresh, what: str, pins: Path | None, *words: str) -> float:
    """How many seconds it took. Pins are passed as a variable, which holds for what builds an sdist too."""
    started = time.perf_counter()
    _pip(into, "install", "--quiet", *words, what, variables={} if pins is None else {"PIP_CONSTRAINT": str(pins)})
    seconds = time.perf_counter() - started
    _pip(into, "check")
    return seconds


def _pip(into: Fresh, *words: str, variables: Mapping[str, str] | None = None) -> str:
    command: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", into.python]
    return _ran([*command, *words], into, INSTALL_S, variables or {}, own_home=False)


def _ran(
    command: list[str | Path], where: Fresh, deadline: float, variables: Mapping[str, str], *, own_home: bool = True
) -> str:
    hidden = ("PYTHON", "VIRTUAL_ENV", "PIP_CONSTRAINT", "HERMES_", "HF_", "WANDB_", "TRACKIO_", "RAY_", "TINKER_")
    kept: dict[str, Any] = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    if own_home:
        kept |= {"HOME": str(where.work), "HERMES_HOME": str(where.work / "hermes")}
        kept["PATH"] = f"{where.home / 'bin'}:{kept.get('PATH', '')}"
    try:
        done = subprocess.run(
            command,
            cwd=where.work,
            env={**kept, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"{where.name}: not done after {deadline:.0f} s: {_line(command)}") from error
    if done.returncode:
        raise ReleaseError(
            f"{where.name}: exit status {done.returncode}: {_line(command)}\n{(done.stdout + done.stderr)[-4000:]}"
        )
    return done.stdout


def _line(command: list[str | Path]) -> str:
    return " ".join(map(str, command))[:500]

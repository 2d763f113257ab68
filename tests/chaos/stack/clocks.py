"""Clocks that can be set wrong: Debian's libfaketime in every process of a run, and a file for each that it reads.

Always true: the machine's own clock is never touched, nor the clock that only counts on, nor the times of files.
"""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from hermes_rl.orchestration.supervision.run_plan import RunPlan

SITE = Path(__file__).with_name("clock_site")
# Wherever this kind of machine keeps its libraries.
LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
INSTALL = "libfaketime is missing: apt install faketime"


@dataclass(frozen=True, slots=True)
class Clocks:
    folder: Path

    def set(self, name: str, seconds: float) -> None:
        """How much the clock of these processes is ahead; heeded within a second."""
        path = self.folder / f"{name}.clock"
        aside = path.with_suffix(".part")
        aside.write_text(f"{seconds:+.0f}\n")
        aside.replace(path)

    def variables(self, name: str) -> dict[str, str]:
        if not LIBRARIES:
            raise RuntimeError(INSTALL)
        self.set(name, 0)
        return {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self.folder / f"{name}.clock"),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def wound(self, plan: RunPlan) -> RunPlan:
        """The same parts, each with a clock of its own."""
        parts = [
            replace(part, command=("/usr/bin/env", *_words(self.variables(part.name)), *part.command))
            for part in plan.parts
        ]
        return replace(plan, parts=tuple(parts))

    def engine_environment(self, real: Path) -> Path:
        """An engine is given a path of modules of its own; this one's Python adds ours to it."""
        home = self.folder / "engine"
        python = home / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        path = f'PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{shlex.quote(str(SITE))}'
        python.write_text(f'#!/bin/sh\n{path} exec {shlex.quote(str(real / "bin" / "python"))} "$@"\n')
        python.chmod(0o755)
        return home


def _words(variables: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]

"""The gate: every test that is not `long`, in parts that run side by side, and the checks that run no code."""

import tomllib
from collections.abc import Iterator

from scripts.suites.jobs import Job
from scripts.suites.record import DECLARED, ROOT


def gate_jobs() -> Iterator[Job]:
    """A part leaves out what another part has below its folders, so that each test is in one part."""
    yield Job("static", command=("scripts/static",))
    parts: dict[str, list[str]] = tomllib.loads((ROOT / DECLARED).read_text())["gate"]
    for name, paths in parts.items():
        elsewhere = [
            path
            for other, others in parts.items()
            for path in others
            if other != name and any(path.startswith(f"{mine}/") for mine in paths)
        ]
        yield Job(name, ("-m", "not long", *paths, *(f"--ignore={path}" for path in elsewhere)))

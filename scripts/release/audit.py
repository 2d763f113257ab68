"""Asks a database of vulnerabilities about every package of a release.

Always true: a package counts as audited only if the database answered about it. If no database can be reached, the
report says NO DATA, which counts neither as a success nor as a failure.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.release.building import ReleaseError
from scripts.release.environments import Fresh, fresh, install
from scripts.release.trials import Trial

TOOL = "pip-audit"
SERVICES = ("osv", "pypi")
DEADLINE_S = 900.0
ROW = "audit (pip-audit)"


@dataclass(frozen=True, slots=True)
class Audited:
    """`vulnerable` has a line for each finding, `unknown` the packages that the database does not have."""

    packages: int
    vulnerable: tuple[str, ...]
    unknown: tuple[str, ...]


def read(report: str) -> Audited:
    """What pip-audit found; a package that it skipped is not audited."""
    entries = json.loads(report)["dependencies"]
    known = [entry for entry in entries if "skip_reason" not in entry]
    return Audited(
        len(known),
        tuple(f"{one['name']} {one['version']}: {found['id']}" for one in known for found in one["vulns"]),
        tuple(sorted(entry["name"] for entry in entries if "skip_reason" in entry)),
    )


def try_audit(sbom: Path, place: Path) -> Trial:
    """The packages of a bill of materials, by the first service that answers."""
    try:
        with fresh("audit", place) as environment:
            seconds = install(environment, TOOL, pins=None)
            started = time.perf_counter()
            trial = judged(lambda service: _asked(environment, sbom, service))
            return Trial(
                ROW, trial.outcome, install_s=seconds, smoke_s=time.perf_counter() - started, problem=trial.problem
            )
    except ReleaseError as error:
        return Trial(ROW, "FAILED", problem=str(error))


def judged(ask: Callable[[str], Audited], services: Sequence[str] = SERVICES) -> Trial:
    reasons = []
    for service in services:
        try:
            found = ask(service)
        except (ReleaseError, ValueError, KeyError, OSError) as error:
            reasons.append(f"{service}: {(str(error).strip().splitlines() or ['no answer'])[-1][:200]}")
            continue
        if not found.packages:
            reasons.append(f"{service}: it knows none of the {len(found.unknown)} packages")
            continue
        unknown = f"; NO DATA on {', '.join(found.unknown)}" if found.unknown else ""
        if found.vulnerable:
            return Trial(ROW, "FAILED", problem=f"{service}: {'; '.join(found.vulnerable)}{unknown}")
        return Trial(ROW, f"no known vulnerability in {found.packages} packages ({service}){unknown}")
    return Trial(ROW, f"NO DATA: {'; '.join(reasons)}")


def _asked(environment: Fresh, sbom: Path, service: str) -> Audited:
    components = json.loads(sbom.read_text())["components"]
    listed = environment.work / "requirements.txt"
    listed.write_text("".join(f"{one['name']}=={one['version']}\n" for one in components))
    report = environment.work / f"{service}.json"
    words: list[str | Path] = [
        "-m",
        "pip_audit",
        "--requirement",
        listed,
        "--no-deps",
        "--disable-pip",
        "--progress-spinner",
        "off",
    ]
    words += ["--vulnerability-service", service, "--format", "json", "--output", report]
    try:
        environment.run(*words, deadline=DEADLINE_S)
    except ReleaseError:
        # It also exits with 1 when it found something.
        if not report.exists() or not report.stat().st_size:
            raise
    return read(report.read_text())

"""Checks of Python, hermes-rl, its extras, and whether their packages import on this machine."""

import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import groupby

from hermes_rl.core.child_python import python_command
from hermes_rl.orchestration.doctor.finding import DoctorFinding, FindingState
from hermes_rl.orchestration.requirements import PACKAGES, python_requirement
from hermes_rl.version import __version__

# The purpose of each extra. A run needs the first two.
NEEDED = ("train", "tokens")
EXTRAS = {
    "train": "hermes-rl trainer, hermes-rl train",
    "tokens": "hermes-rl serve, and everything with exact tokens",
    "gguf": "hermes-rl export to GGUF",
    "quickstart": "hermes-rl quickstart, and serving a model on this machine",
    "web": "the toolset web reading HTML pages",
    "browser": "the toolset browser",
    "docker": "the sandbox backends docker and podman",
    "ssh": "the sandbox backend ssh",
    "modal": "the sandbox backend modal",
    "daytona": "the sandbox backend daytona",
    "postgres": "hermes-rl api on PostgreSQL",
    "mcp": "hermes-rl mcp, and the mcp: toolsets",
    "wandb": "metrics on Weights & Biases",
    "trackio": "metrics on trackio",
    "otel": "traces, with --trace",
    "datasets": "items from Hugging Face datasets",
    "ray": "replicas on a Ray cluster, with --on ray",
    "atropos": "running our environments with atroposlib",
}
_LOAD_DEADLINE_S = 60.0
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[[^]]*])?\s*(?P<limits>[^;]*);.*\bextra == ['\"](?P<extra>\w+)['\"]"
)


@dataclass(frozen=True, slots=True)
class _ExtraPackage:
    extra: str
    package: str
    limits: str

    def problem(self) -> str | None:
        """What is wrong with the installed package, if anything."""
        try:
            version = metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return f"{self.package} is not installed"
        minimum = re.search(r">=\s*([\d.]+)", self.limits)
        if minimum and _release(version) < _release(minimum[1]):
            return f"{self.package} {version} is older than {minimum[1]}"
        return None


def python() -> list[DoctorFinding]:
    requirement = python_requirement()
    what = f"Python {platform.python_version()} at {sys.executable}"
    if requirement.met:
        return [DoctorFinding("python", FindingState.OK, what)]
    return [DoctorFinding("python", FindingState.MISSING, f"{what}; {requirement.name} is required", requirement.fix)]


def hermes_rl() -> list[DoctorFinding]:
    try:
        installed = metadata.version("hermes-rl")
    except metadata.PackageNotFoundError:
        return [
            DoctorFinding(
                "hermes-rl",
                FindingState.WARN,
                f"hermes-rl {__version__} runs from a source folder that is not installed",
                "pip install -e .",
            )
        ]
    if installed != __version__:
        what = f"hermes-rl {__version__} runs, but pip reports {installed}: the extras may be of another version"
        return [DoctorFinding("hermes-rl", FindingState.WARN, what, "pip install -U hermes-rl")]
    return [DoctorFinding("hermes-rl", FindingState.OK, f"hermes-rl {__version__}")]


def extras() -> list[DoctorFinding]:
    return [
        _extra(extra, [problem for package in packages if (problem := package.problem())])
        for extra, packages in groupby(_extra_packages(), lambda package: package.extra)
    ]


def package_imports() -> list[DoctorFinding]:
    """Import each package in a subprocess: only that reveals a wheel built for another machine."""
    return [_check_import(package, extra) for package, extra in PACKAGES.items() if find_spec(package) is not None]


def _extra(extra: str, problems: list[str]) -> DoctorFinding:
    purpose, check = EXTRAS[extra], f"extra {extra}"
    if not problems:
        return DoctorFinding(check, FindingState.OK, f"installed; for {purpose}")
    state = FindingState.MISSING if extra in NEEDED else FindingState.ABSENT
    if any("older" in problem for problem in problems) and state is FindingState.ABSENT:
        state = FindingState.WARN
    return DoctorFinding(check, state, f"{'; '.join(problems)}; for {purpose}", f"pip install -U 'hermes-rl[{extra}]'")


def _check_import(package: str, extra: str) -> DoctorFinding:
    check, fix = f"package {package}", f"pip install -U --force-reinstall 'hermes-rl[{extra}]'"
    try:
        done = subprocess.run(
            python_command("-c", f"import {package}"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LOAD_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return DoctorFinding(
            check, FindingState.WARN, f"took longer than {_LOAD_DEADLINE_S:.0f} s to load: a slow or busy machine"
        )
    if done.returncode:
        error = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return DoctorFinding(check, FindingState.MISSING, f"does not load: {error}", fix)
    return DoctorFinding(check, FindingState.OK, "loads")


def _extra_packages() -> Iterator[_ExtraPackage]:
    """The extras in the installed metadata, in our order; from our own table when not installed."""
    try:
        lines = metadata.requires("hermes-rl") or []
    except metadata.PackageNotFoundError:
        lines = [f"{package}; extra == '{extra}'" for package, extra in PACKAGES.items()]
    found = [match for line in lines if (match := _REQUIREMENT.match(line))]
    for extra in EXTRAS:
        for match in found:
            if match["extra"] == extra:
                yield _ExtraPackage(extra, match["name"], match["limits"])


def _release(version: str) -> tuple[int, ...]:
    """The numeric release of a version, without trailing zeros."""
    numbers = [int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part]  # type: ignore[index]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)

"""Python, hermes-rl itself, its extras, and whether the packages they brought load on this machine."""

import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from itertools import groupby

from hermes_rl.runs.doctor.finding import Finding, State
from hermes_rl.runs.requirements import PACKAGES, python_requirement
from hermes_rl.version import __version__

# What each extra is for. A run needs the first two.
NEEDED = ("train", "tokens")
EXTRAS = {
    "train": "hermes-rl trainer, hermes-rl train",
    "tokens": "hermes-rl serve, and everything with exact tokens",
    "gguf": "hermes-rl export to GGUF",
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
    "otel": "traces, by --trace",
    "datasets": "items from datasets of Hugging Face",
    "ray": "replicas on a Ray cluster, by --on ray",
    "atropos": "our environments as atroposlib's",
}
_LOAD_DEADLINE_S = 60.0
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?:\[[^]]*])?\s*(?P<limits>[^;]*);.*\bextra == ['\"](?P<extra>\w+)['\"]"
)


@dataclass(frozen=True, slots=True)
class _Wanted:
    extra: str
    package: str
    limits: str

    def fault(self) -> str | None:
        """What is wrong with the package here; None when it will do."""
        try:
            version = metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return f"{self.package} is not installed"
        least = re.search(r">=\s*([\d.]+)", self.limits)
        if least and _numbers(version) < _numbers(least[1]):
            return f"{self.package} {version} is older than {least[1]}"
        return None


def python() -> list[Finding]:
    wanted = python_requirement()
    what = f"Python {platform.python_version()} at {sys.executable}"
    if wanted.met:
        return [Finding("python", State.OK, what)]
    return [Finding("python", State.MISSING, f"{what}; {wanted.name} is needed", wanted.mend)]


def hermes_rl() -> list[Finding]:
    try:
        installed = metadata.version("hermes-rl")
    except metadata.PackageNotFoundError:
        return [Finding("hermes-rl", State.WARN, f"hermes-rl {__version__} runs uninstalled", "pip install -e .")]
    if installed != __version__:
        what = f"hermes-rl {__version__} runs, pip believes in {installed}: its extras may be those of another version"
        return [Finding("hermes-rl", State.WARN, what, "pip install -U hermes-rl")]
    return [Finding("hermes-rl", State.OK, f"hermes-rl {__version__}")]


def extras() -> list[Finding]:
    return [
        _extra(extra, [fault for one in wanted if (fault := one.fault())])
        for extra, wanted in groupby(_wanted(), lambda one: one.extra)
    ]


def packages_load() -> list[Finding]:
    """Really imported, in a process of its own: a wheel for another machine shows only then."""
    return [_loads(package, extra) for package, extra in PACKAGES.items() if find_spec(package) is not None]


def _extra(extra: str, faults: list[str]) -> Finding:
    purpose, check = EXTRAS[extra], f"extra {extra}"
    if not faults:
        return Finding(check, State.OK, f"installed; for {purpose}")
    state = State.MISSING if extra in NEEDED else State.ABSENT
    if any("older" in fault for fault in faults) and state is State.ABSENT:
        state = State.WARN
    return Finding(check, state, f"{'; '.join(faults)}; for {purpose}", f"pip install -U 'hermes-rl[{extra}]'")


def _loads(package: str, extra: str) -> Finding:
    check, mend = f"package {package}", f"pip install -U --force-reinstall 'hermes-rl[{extra}]'"
    try:
        said = subprocess.run(
            [sys.executable, "-c", f"import {package}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LOAD_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding(check, State.WARN, f"took longer than {_LOAD_DEADLINE_S:.0f} s to load: a slow or busy machine")
    if said.returncode:
        last = (said.stderr.strip().splitlines() or [f"it ended with {said.returncode}"])[-1]
        return Finding(check, State.MISSING, f"does not load: {last}", mend)
    return Finding(check, State.OK, "loads")


def _wanted() -> Iterator[_Wanted]:
    """What the installed package says of its extras, in our order; by our table where it says nothing."""
    try:
        lines = metadata.requires("hermes-rl") or []
    except metadata.PackageNotFoundError:
        lines = [f"{package}; extra == '{extra}'" for package, extra in PACKAGES.items()]
    found = [match for line in lines if (match := _REQUIREMENT.match(line))]
    for extra in EXTRAS:
        for match in found:
            if match["extra"] == extra:
                yield _Wanted(extra, match["name"], match["limits"])


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version, so far as it is numbers: enough to tell an older one."""
    numbers = [int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part]  # type: ignore[index]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)

"""Long suites: what each depends on, whether it passed with exactly that, and which of them a CI run has to run.

tests/suites.toml declares them; tests/suites.json records, for each, the hash of its inputs at its last pass. A suite
counts as passed only while the hash of its inputs is the recorded one.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from scripts.suites.closure import OWN, Checkout

ROOT = Path(__file__).parents[2]
DECLARED = Path("tests/suites.toml")
RECORD = Path("tests/suites.json")
# The record cannot be an input of what it records.
NOT_INPUTS = (OWN, str(DECLARED), str(RECORD))
# CI ends a submission after 90 minutes. A run that is predicted to take longer than this is not started.
MOST_MINUTES = 80.0
CORES = 2
COUNT_AFTER_DAYS = 30


@dataclass(frozen=True, slots=True)
class Suite:
    """`tests` are run with `-m long`; a `command` is run as it is, and its inputs are what it names and `also`."""

    name: str
    about: str
    tests: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    pins: tuple[str, ...] = ("constraints/dev.txt",)


@dataclass(frozen=True, slots=True)
class Pass:
    """`inputs` is the hash of what the suite depended on; `ci` is when CI last ran it with success, if ever."""

    inputs: str
    passed: str
    minutes: float
    cpu_minutes: float
    tests: int
    ci: str = ""


@dataclass(frozen=True, slots=True)
class Gate:
    """How long `.ci/run` takes without long suites, by whether its caches were there."""

    warm_minutes: float = 0.0
    empty_minutes: float = 0.0


@dataclass(frozen=True, slots=True)
class Coverage:
    """When the lines that the gate runs were last counted, and how many of a hundred ran."""

    counted: str = ""
    percent: float = 0.0

    def is_due(self, today: str) -> bool:
        """Counting costs a tenth of a run and more, so not every run counts."""
        days = datetime.fromisoformat(today) - datetime.fromisoformat(self.counted or "2000-01-01T00:00Z")
        return days > timedelta(days=COUNT_AFTER_DAYS)


@dataclass(frozen=True, slots=True)
class Record:
    gate: Gate = field(default_factory=Gate)
    long: Mapping[str, Pass] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one CI run does: the suites whose inputs changed, and one unchanged suite, to check its record."""

    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    rechecked: str | None
    minutes: float

    @property
    def to_run(self) -> tuple[str, ...]:
        return (*self.changed, *([self.rechecked] if self.rechecked else []))

    @property
    def fits(self) -> bool:
        return self.minutes <= MOST_MINUTES


def declared(root: Path = ROOT) -> dict[str, Suite]:
    table: dict[str, dict[str, Any]] = tomllib.loads((root / DECLARED).read_text())["long"]
    lists = ("tests", "command", "also", "pins")
    return {
        name: Suite(name, entry["about"], **{key: tuple(entry[key]) for key in lists if key in entry})
        for name, entry in table.items()
    }


def load(path: Path) -> Record:
    if not path.exists():
        return Record()
    data = json.loads(path.read_text())
    long = {name: Pass(**entry) for name, entry in data.get("long", {}).items()}
    return Record(Gate(**data.get("gate", {})), long, Coverage(**data.get("coverage", {})))


def save(record: Record, path: Path) -> None:
    long = {name: asdict(record.long[name]) for name in sorted(record.long)}
    data = {"gate": asdict(record.gate), "coverage": asdict(record.coverage), "long": long}
    path.write_text(json.dumps(data, indent=2) + "\n")


def inputs(checkout: Checkout, suite: Suite) -> list[str]:
    """The files that this suite depends on, in order."""
    words = [word for word in suite.command if word in checkout.files]
    roots = checkout.expand([*suite.tests, *words, *suite.also])
    found = checkout.closure(roots) | checkout.expand(suite.pins)
    return sorted(path for path in found if not path.startswith(NOT_INPUTS))


def digest(checkout: Checkout, suite: Suite) -> str:
    """Of the inputs' paths and code and of the declaration itself."""
    total = hashlib.sha256(repr((suite.tests, suite.command)).encode())
    for path in inputs(checkout, suite):
        total.update(f"{path}\0{checkout.digest(path)}\n".encode())
    return total.hexdigest()


def plan(record: Record, digests: Mapping[str, str], *, caches_empty: bool, salt: str = "") -> Plan:
    """`salt` (the commit) decides between suites that CI ran equally long ago, so that new machines take turns too."""
    changed = [
        name for name, inputs in digests.items() if name not in record.long or record.long[name].inputs != inputs
    ]
    unchanged = [name for name in digests if name not in changed]

    def age(name: str) -> tuple[str, str]:
        return record.long[name].ci, hashlib.sha256(f"{salt}{name}".encode()).hexdigest()

    rechecked = min(unchanged, key=age, default=None)
    gate = record.gate.empty_minutes
    if not caches_empty:
        # A run with warm caches takes less than one with empty ones, also where none was timed yet.
        gate = record.gate.warm_minutes or gate
    # The gate's own figure has one unchanged suite in it.
    return Plan(tuple(changed), tuple(unchanged), rechecked, gate + added_minutes(record, changed))


def added_minutes(record: Record, names: Iterable[str]) -> float:
    """What these suites add to a run that keeps the cores busy anyway. One that never passed adds nothing known."""
    known = [record.long[name] for name in names if name in record.long]
    return sum(max(entry.cpu_minutes, entry.minutes / 2) for entry in known) / CORES


def with_ci(record: Record, seen: Record) -> Record:
    """The committed record, with the dates of CI runs and the gate's times that CI on this machine has noted since."""
    ours, theirs = record.gate, seen.gate
    gate = Gate(theirs.warm_minutes or ours.warm_minutes, theirs.empty_minutes or ours.empty_minutes)
    long = {}
    for name, entry in record.long.items():
        long[name] = replace(entry, ci=max(entry.ci, seen.long[name].ci)) if name in seen.long else entry
    return Record(gate, long, max(record.coverage, seen.coverage, key=lambda one: one.counted))


def adopted(record: Record, seen: Record, digests: Mapping[str, str]) -> Record:
    """The same, and passes with today's inputs that CI on this machine has seen: nobody runs these suites again."""
    record = with_ci(record, seen)
    known = {
        name: entry
        for name, entry in seen.long.items()
        if entry.inputs == digests.get(name) and (name not in record.long or record.long[name].inputs != entry.inputs)
    }
    return replace(record, long={**record.long, **known})


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")

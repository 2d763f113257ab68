"""The parts of a run as they are to be: what each is, what it needs, its command, and how patient one is with it.

Always true: a command holds no secret and no address; `{port}` and `{url:NAME}` in it stand for what a start finds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.runs.steady import read_steadily, write_steadily


class Role(StrEnum):
    """In the order of their ranks: stopped from the last to the first."""

    ENGINE = "engine"
    API = "api"
    TRAINER = "trainer"
    ENVIRONMENT = "environment"
    EXPORT = "export"

    @property
    def rank(self) -> int:
        return list(Role).index(self)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds, and how many failures are borne."""

    ready_within: float = 60.0
    stop_within: float = 20.0
    first_pause: float = 1.0
    longest_pause: float = 30.0
    most_failures: int = 5
    """Within `window`; one more ends the run."""
    window: float = 900.0
    steady_after: float = 300.0
    """Ready for so long, its failures are forgotten."""


PATIENCE = {
    # The first start of an engine installs it; a large model takes minutes to load.
    Role.ENGINE: Patience(ready_within=1800.0, stop_within=30.0),
    Role.API: Patience(ready_within=60.0, stop_within=20.0),
    # It ends after the step under way.
    Role.TRAINER: Patience(ready_within=900.0, stop_within=120.0),
    # Its setup may fetch a dataset or an image.
    Role.ENVIRONMENT: Patience(ready_within=1800.0, stop_within=60.0),
    Role.EXPORT: Patience(ready_within=1800.0, stop_within=10.0, most_failures=1),
}


@dataclass(frozen=True, slots=True)
class PartPlan:
    name: str
    role: Role
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Those that must be ready before it is started."""
    evaluation_only: bool = False
    registers_as: str | None = None
    """The name by which the trajectory API knows it."""
    patience: Patience = field(default_factory=Patience)
    host: str = "127.0.0.1"
    """Where it listens, if it does."""
    asks_with: str | None = None
    """The key that the trajectory API wants of who asks about it."""

    @property
    def listens(self) -> bool:
        return any("{port}" in word for word in self.command)


@dataclass(frozen=True, slots=True)
class Plan:
    """`keys` are the names of the keys that parts are given as variables; `folder` is where they are started.

    `trace` is the collector of its traces; `traceparent` the span of the run, which those of its parts are inside of.
    """

    parts: tuple[PartPlan, ...]
    keys: tuple[str, ...] = ()
    folder: str = "/"
    trace: str | None = None
    traceparent: str | None = None

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_steadily(path, asdict(self))


def read_plan(path: Path) -> Plan:
    told = read_steadily(path)
    if told is None:
        raise ConfigError(f"{path} is missing, so nobody knows this run's parts; `hermes-rl run resume` writes it anew")
    parts = tuple(_part(part) for part in told["parts"])
    return Plan(parts, tuple(told["keys"]), told["folder"], told.get("trace"), told.get("traceparent"))


def filled(command: Sequence[str], port: int | None, urls: Mapping[str, str]) -> list[str]:
    """The command with the port and the addresses that its marks stand for."""
    marks = {"{port}": str(port), **{f"{{url:{name}}}": url for name, url in urls.items()}}
    words = []
    for word in command:
        for mark, value in marks.items():
            word = word.replace(mark, value)  # noqa: PLW2901
        words.append(word)
    return words


def _part(told: dict[str, Any]) -> PartPlan:
    changed = {"role": Role(told["role"]), "patience": Patience(**told["patience"])}
    return PartPlan(**{**told, **changed, "command": tuple(told["command"]), "needs": tuple(told["needs"])})

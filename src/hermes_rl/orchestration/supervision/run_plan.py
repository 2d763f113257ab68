"""The planned components of a run: role, needs, command and timeouts of each.

Always true: a command contains no secret and no URL; `{port}` and `{url:NAME}` in it are filled in at start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.private_files import private_folder
from hermes_rl.orchestration.atomic_json import read_atomic_json, write_atomic_json
from hermes_rl.orchestration.reconciler.unit import RestartPolicy


class Role(StrEnum):
    """In order of rank: components are stopped from the last to the first."""

    ENGINE = "engine"
    API = "api"
    TRAINER = "trainer"
    BASELINE = "baseline"
    """An evaluation before the first step; environments wait for it."""
    ENVIRONMENT = "environment"
    EXPORT = "export"
    EVALUATION = "evaluation"
    """An evaluation after the last step."""

    @property
    def rank(self) -> int:
        return list(Role).index(self)


@dataclass(frozen=True, slots=True)
class ComponentTimeouts(RestartPolicy):
    """In seconds."""

    ready_within: float = 60.0
    stop_within: float = 20.0


TIMEOUTS = {
    # The first start of an engine installs it; a large model takes minutes to load.
    Role.ENGINE: ComponentTimeouts(ready_within=1800.0, stop_within=30.0),
    Role.API: ComponentTimeouts(ready_within=60.0, stop_within=20.0),
    # It finishes the current step first.
    Role.TRAINER: ComponentTimeouts(ready_within=900.0, stop_within=120.0),
    # Its setup may download a dataset or an image.
    Role.ENVIRONMENT: ComponentTimeouts(ready_within=1800.0, stop_within=60.0),
    Role.EXPORT: ComponentTimeouts(ready_within=1800.0, stop_within=10.0, most_failures=1),
    # Ready while they run, so that no deadline ends a long one.
    Role.BASELINE: ComponentTimeouts(stop_within=30.0, most_failures=1),
    Role.EVALUATION: ComponentTimeouts(stop_within=30.0, most_failures=1),
}


@dataclass(frozen=True, slots=True)
class ComponentPlan:
    name: str
    role: Role
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """The components that must be ready before it starts."""
    evaluation_only: bool = False
    registers_as: str | None = None
    """Its name at the trajectory API."""
    patience: ComponentTimeouts = field(default_factory=ComponentTimeouts)
    host: str = "127.0.0.1"
    """The address it listens on, if it does."""
    asks_with: str | None = None
    """The name of the key for requests to the trajectory API about it."""

    @property
    def listens(self) -> bool:
        return any("{port}" in word for word in self.command)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """`keys` names the keys passed to components as environment variables; `folder` is their working directory.

    `trace` is the URL of the trace collector; `traceparent` is the run's span, the parent of its components' spans.
    """

    parts: tuple[ComponentPlan, ...]
    keys: tuple[str, ...] = ()
    folder: str = "/"
    trace: str | None = None
    traceparent: str | None = None
    max_minutes: float | None = None
    """The run stops after this time, counted from each start."""

    def write(self, path: Path) -> None:
        private_folder(path.parent)
        write_atomic_json(path, asdict(self))


def read_plan(path: Path) -> RunPlan:
    data = read_atomic_json(path)
    if data is None:
        raise ConfigError(f"{path}, the run's plan, is missing; `hermes-rl run resume` writes it again")
    parts = tuple(_component_plan(part) for part in data["parts"])
    optional = {name: data.get(name) for name in ("trace", "traceparent", "max_minutes")}
    return RunPlan(parts, tuple(data["keys"]), data["folder"], **optional)


def fill_command(command: Sequence[str], port: int | None, urls: Mapping[str, str]) -> list[str]:
    """The command with its placeholders replaced by the port and the URLs."""
    values = {"{port}": str(port), **{f"{{url:{name}}}": url for name, url in urls.items()}}
    filled = []
    for word in command:
        for placeholder, value in values.items():
            word = word.replace(placeholder, value)  # noqa: PLW2901
        filled.append(word)
    return filled


def _component_plan(data: dict[str, Any]) -> ComponentPlan:
    changed = {"role": Role(data["role"]), "patience": ComponentTimeouts(**data["patience"])}
    return ComponentPlan(**{**data, **changed, "command": tuple(data["command"]), "needs": tuple(data["needs"])})

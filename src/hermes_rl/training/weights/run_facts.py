"""What the files of a training run tell about its weights, read beside a trainer that may be writing them.

Always true: nothing is written, and a line or a file that cannot be read is as if it were not there: a card with a gap
is better than no weights.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.sinks.reading import read_metrics

REWARD = "reward/mean"
ENVIRONMENT = "reward/environment/"


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """A checkpoint of the run that the engine still has."""

    step: int
    version: int
    sampler: str
    state: str | None = None
    at: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class RunFacts:
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    started_at: str = ""
    hermes_rl: str = ""
    environments: tuple[str, ...] = ()
    rewards: Mapping[int, float] = field(default_factory=dict)
    """The mean reward of each step."""
    checkpoints: tuple[SavedWeights, ...] = ()

    def weights(self, step: int | None) -> SavedWeights:
        """Those after that step; else the final ones, else the last."""
        if not self.checkpoints:
            raise ConfigError(f"the run {self.name} has saved no weights yet; wait for its first checkpoint")
        if step is None:
            return next((one for one in reversed(self.checkpoints) if one.final), self.checkpoints[-1])
        found = next((one for one in reversed(self.checkpoints) if one.step == step), None)
        if found is None:
            steps = ", ".join(str(number) for number in sorted({one.step for one in self.checkpoints}))
            raise ConfigError(f"the run {self.name} keeps no weights of step {step}; it has those of {steps}")
        return found


def read_run(folder: Path) -> RunFacts:
    told = _file(folder / "run.json")
    settings = told.get("settings")
    rewards, environments = _measured(folder / "metrics.jsonl")
    named = told.get("environments")
    return RunFacts(
        name=str(told.get("name") or folder.name),
        settings=settings if isinstance(settings, Mapping) else {},
        started_at=str(told.get("started_at") or ""),
        hermes_rl=str(told.get("hermes_rl") or ""),
        environments=tuple(map(str, named)) if isinstance(named, list) else environments,
        rewards=rewards,
        checkpoints=_checkpoints(folder / "lineage.jsonl"),
    )


def _measured(path: Path) -> tuple[dict[int, float], tuple[str, ...]]:
    """Rewards by step, of the run as it went in the end; and the environments."""
    try:
        lines = read_metrics(path)
    except (OSError, ConfigError):
        return {}, ()
    rewards = {line["step"]: float(line[REWARD]) for line in lines if isinstance(line.get(REWARD), float | int)}
    names = (name for line in lines for name in line if name.startswith(ENVIRONMENT))
    return rewards, tuple(dict.fromkeys(name.removeprefix(ENVIRONMENT) for name in names))


def _checkpoints(path: Path) -> tuple[SavedWeights, ...]:
    found: list[SavedWeights] = []
    for line in _lines(path):
        match line:
            case {"deleted": int(step)}:
                found = [one for one in found if one.step != step or one.final]
            case {"step": int(step), "version": int(version), "sampler": str(sampler)}:
                state, final = line.get("state"), line.get("final") is True
                found.append(SavedWeights(step, version, sampler, state, str(line.get("at") or ""), final))
    return tuple(found)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            told = jsontext.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict):
            yield told


def _file(path: Path) -> dict[str, Any]:
    try:
        told = jsontext.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}

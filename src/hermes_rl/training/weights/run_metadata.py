"""Reads the files of a training run for the model card, also while the trainer writes them.

Always true: nothing is written, and unreadable lines and files are skipped: a partial card is better than no export.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.sinks.metrics_file import read_metrics

REWARD = "reward/mean"
ENVIRONMENT = "reward/environment/"


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """A checkpoint of the run that still exists at the engine."""

    step: int
    version: int
    sampler: str
    state: str | None = None
    at: str = ""
    final: bool = False


@dataclass(frozen=True, slots=True)
class RunMetadata:
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    started_at: str = ""
    hermes_rl: str = ""
    environments: tuple[str, ...] = ()
    rewards: Mapping[int, float] = field(default_factory=dict)
    """The mean reward of each step."""
    checkpoints: tuple[SavedWeights, ...] = ()
    started_from: str = ""
    """Run and step, or the weights, that it started from; empty for an untrained adapter."""

    def weights(self, step: int | None) -> SavedWeights:
        """The weights of `step`; without one the final weights, else the last."""
        if not self.checkpoints:
            raise ConfigError(f"run {self.name} has no checkpoint yet; wait for the first one")
        if step is None:
            return next((saved for saved in reversed(self.checkpoints) if saved.final), self.checkpoints[-1])
        found = next((saved for saved in reversed(self.checkpoints) if saved.step == step), None)
        if found is None:
            steps = ", ".join(str(number) for number in sorted({saved.step for saved in self.checkpoints}))
            raise ConfigError(f"run {self.name} has no checkpoint of step {step}; it has {steps}")
        return found


def read_run(folder: Path) -> RunMetadata:
    run = _json_object(folder / "run.json")
    settings = run.get("settings")
    rewards, environments = _read_metrics(folder / "metrics.jsonl")
    named = run.get("environments")
    return RunMetadata(
        name=str(run.get("name") or folder.name),
        settings=settings if isinstance(settings, Mapping) else {},
        started_at=str(run.get("started_at") or ""),
        hermes_rl=str(run.get("hermes_rl") or ""),
        environments=tuple(map(str, named)) if isinstance(named, list) else environments,
        rewards=rewards,
        checkpoints=_read_checkpoints(folder / "lineage.jsonl"),
        started_from=_started_from(run.get("started_from")),
    )


def _started_from(record: Any) -> str:
    match record:
        case {"run": str(name), "step": int(step)}:
            return f"run {name}, step {step}"
        case {"weights": str(weights)}:
            return weights
    return ""


def _read_metrics(path: Path) -> tuple[dict[int, float], tuple[str, ...]]:
    """Rewards by step, without superseded steps; and the environments."""
    try:
        lines = read_metrics(path)
    except (OSError, ConfigError):
        return {}, ()
    rewards = {line["step"]: float(line[REWARD]) for line in lines if isinstance(line.get(REWARD), float | int)}
    names = (name for line in lines for name in line if name.startswith(ENVIRONMENT))
    return rewards, tuple(dict.fromkeys(name.removeprefix(ENVIRONMENT) for name in names))


def _read_checkpoints(path: Path) -> tuple[SavedWeights, ...]:
    found: list[SavedWeights] = []
    for line in _json_lines(path):
        match line:
            case {"deleted": int(step)}:
                found = [saved for saved in found if saved.step != step or saved.final]
            case {"step": int(step), "version": int(version), "sampler": str(sampler)}:
                state, final = line.get("state"), line.get("final") is True
                found.append(SavedWeights(step, version, sampler, state, str(line.get("at") or ""), final))
    return tuple(found)


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            content = fast_json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            yield content


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = fast_json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

"""Two evaluations side by side: read back from disk, tested on the items they share, with all that differs besides.

A number is compared only where both have it, item by item. What differs between the two is named, so that a difference
in score is not put down to the wrong cause.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.environment.evaluation.folder import GROUPS, METRICS
from hermes_rl.errors import ConfigError
from hermes_rl.statistics.intervals import Interval, mean_interval
from hermes_rl.statistics.paired import Comparison, compare
from hermes_rl.store.records import read_groups

# Said in words of their own, whichever settings they came from.
TOLD_APART = frozenset({"eval_samples", "agent_temperature"})


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation as far as a comparison needs it; `samples` and `temperature` are None where they are not known."""

    path: Path
    provenance: Mapping[str, Any]
    scores: Mapping[str, Sequence[float]]
    unscored: int
    samples: int | None
    temperature: float | None = None
    limit: str | None = None
    finished: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> str:
        return str(self.provenance["model"])


@dataclass(frozen=True, slots=True)
class Compared:
    """Both means are over the items that the two share."""

    first: Evaluated
    second: Evaluated
    first_mean: Interval
    second_mean: Interval
    comparison: Comparison
    warnings: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """The comparison as JSON."""
        test = self.comparison
        return {
            "format": "hermes-rl/comparison/1",
            "first": _side(self.first, self.first_mean),
            "second": _side(self.second, self.second_mean),
            "common_items": test.difference.n_items,
            "difference": asdict(test.difference),
            "p_value": test.p_value,
            "method": test.method,
            "wins": test.wins,
            "losses": test.losses,
            "ties": test.ties,
            "only_in_first": list(test.only_in_first),
            "only_in_second": list(test.only_in_second),
            "warnings": list(self.warnings),
        }


def compare_evaluations(first: Evaluated, second: Evaluated) -> Compared:
    """ConfigError when they have no item in common."""
    test = compare(first.scores, second.scores)
    shared = [item for item, scores in first.scores.items() if scores and second.scores.get(item)]
    return Compared(
        first,
        second,
        _mean(first, shared),
        _mean(second, shared),
        test,
        tuple(_warnings(first, second, test)),
    )


def read_evaluation(path: Path) -> Evaluated:
    """From a folder, its metrics.json, or a file of groups; ConfigError when it holds no scores by item."""
    if path.is_dir():
        report = path / METRICS
        if report.exists():
            return _from_report(report)
        if (path / GROUPS).exists():
            return _from_groups(path / GROUPS, finished=False)
        raise ConfigError(f"{path} holds neither {METRICS} nor {GROUPS}; name the folder that `evaluate` wrote to")
    if not path.exists():
        raise ConfigError(f"there is no {path}; name a folder that `evaluate` wrote to, or its {METRICS}")
    return _from_report(path) if path.suffix == ".json" else _from_groups(path)


def _from_report(path: Path) -> Evaluated:
    try:
        report = jsontext.loads(path.read_bytes())
        items = report.get("items")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is not the report of an evaluation: {error}") from error
    if not isinstance(items, list):
        raise ConfigError(
            f"{path} has no scores by item: it was written by an evaluate() of the environment's own, or by an older "
            "version; evaluate again with the default evaluate() to compare"
        )
    return Evaluated(
        path=path,
        provenance=report["provenance"],
        scores={item["item_id"]: item["scores"] for item in items},
        unscored=sum(item["unscored"] for item in items),
        samples=report["samples_per_item"],
        temperature=report["generation_parameters"].get("temperature"),
        limit=report["limit"],
        settings=report["settings"],
    )


def _from_groups(path: Path, *, finished: bool = True) -> Evaluated:
    provenance: dict[str, Any] | None = None
    scores: dict[str, list[float]] = {}
    unscored = samples = 0
    for group in read_groups(path):
        provenance = provenance or asdict(group.provenance)
        scores.setdefault(group.item_id, []).extend(group.scores)
        unscored += len(group.rollouts) - len(group.scores)
        samples = max(samples, len(group.rollouts))
    if provenance is None:
        raise ConfigError(f"{path} holds no groups yet; let the evaluation finish an item first")
    return Evaluated(path, provenance, scores, unscored, samples, finished=finished)


def _mean(side: Evaluated, shared: Sequence[str]) -> Interval:
    mean = mean_interval([side.scores[item] for item in shared])
    if mean is None:
        raise ConfigError(f"{side.path} has no scored item in common with the other evaluation")
    return mean


def _side(side: Evaluated, mean: Interval) -> dict[str, Any]:
    return {
        "path": str(side.path),
        "environment": side.provenance["environment"],
        "model": side.model,
        "samples_per_item": side.samples,
        "temperature": side.temperature,
        "mean": mean.estimate,
        "low": mean.low,
        "high": mean.high,
        "level": mean.level,
        "method": mean.method,
        "items": len(side.scores),
        "scored": sum(map(len, side.scores.values())),
        "unscored": side.unscored,
    }


def _warnings(first: Evaluated, second: Evaluated, test: Comparison) -> Iterator[str]:
    one, other = first.provenance, second.provenance
    if one["environment"] != other["environment"]:
        yield f"the environments differ: {one['environment']} and {other['environment']}"
    elif one["environment_hash"] != other["environment_hash"]:
        yield "the environment's file differs, so its reward may too; `hermes-rl rescore` scores both by the same one"
    if one["dataset_hash"] != other["dataset_hash"]:
        yield "the datasets differ in their items or their split; only the items in both are compared"
    if first.samples != second.samples:
        yield f"samples of an item differ: {first.samples} and {second.samples}"
    if None in {first.temperature, second.temperature}:
        yield "the temperature is not known on both sides"
    elif first.temperature != second.temperature:
        yield f"the temperature differs: {first.temperature:g} and {second.temperature:g}"
    yield from _settings_that_differ(first, second)
    for side, alone in ((first, test.only_in_first), (second, test.only_in_second)):
        if alone:
            yield f"{len(alone)} scored {'item is' if len(alone) == 1 else 'items are'} only in {side.path}"
        if side.unscored:
            yield f"{side.unscored} rollouts of {side.path} have no score; unless that was chance, its mean is off"
        if side.limit:
            yield f"{side.path} was ended early by {side.limit}"
        if not side.finished:
            yield f"{side.path} is of an evaluation that has not finished"


def _settings_that_differ(first: Evaluated, second: Evaluated) -> Iterator[str]:
    if not first.settings or not second.settings:
        if first.model == second.model and first.provenance["config_hash"] != second.provenance["config_hash"]:
            yield "the settings differ; the reports beside the groups (metrics.json) tell which"
        return
    names = first.settings.keys() | second.settings.keys()
    for name in sorted(names - TOLD_APART):
        before, after = first.settings.get(name), second.settings.get(name)
        if before != after:
            shown = not isinstance(before, str) and not isinstance(after, str)
            yield f"the setting {name} differs" + (f": {before} and {after}" if shown else "")

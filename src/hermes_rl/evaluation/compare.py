"""Compare two evaluations from disk with a paired test on their shared items.

Only items that both have scored are compared. Other differences between the two are reported, so that a difference in
score is not attributed to the wrong cause.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.evaluation.evaluated_policy import policy_text
from hermes_rl.evaluation.output_folder import GROUPS, METRICS
from hermes_rl.evaluation.statistics.intervals import Interval, mean_interval
from hermes_rl.evaluation.statistics.paired import PairedResult, paired_test
from hermes_rl.rollout.sampler import content_id
from hermes_rl.store.records import read_groups

# Settings with their own warnings.
REPORTED_SEPARATELY = frozenset({"eval_samples", "eval_temperature", "agent_temperature"})


@dataclass(frozen=True, slots=True)
class LoadedEvaluation:
    """The data that a comparison needs; `samples` and `temperature` are None where unknown."""

    path: Path
    provenance: Mapping[str, Any]
    scores: Mapping[str, Sequence[float]]
    unscored: int
    samples: int | None
    temperature: float | None = None
    limit: str | None = None
    finished: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] | None = None
    finished_at: str = ""
    split: str = "eval"

    @property
    def model(self) -> str:
        return str(self.provenance["model"])


@dataclass(frozen=True, slots=True)
class EvaluationComparison:
    """Both means are over the shared items."""

    first: LoadedEvaluation
    second: LoadedEvaluation
    first_mean: Interval
    second_mean: Interval
    comparison: PairedResult
    warnings: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        test = self.comparison
        return {
            "format": "hermes-rl/comparison/1",
            "first": _side_summary(self.first, self.first_mean),
            "second": _side_summary(self.second, self.second_mean),
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


# Longer values, such as a system prompt, are not repeated in a sentence.
MAX_SHOWN = 60


class Difference(NamedTuple):
    """Something besides the answers that can explain a difference in score; values are None where it has none."""

    name: str
    first: Any
    second: Any
    text: str


def compare_evaluations(first: LoadedEvaluation, second: LoadedEvaluation) -> EvaluationComparison:
    """ConfigError when they have no item in common."""
    test = paired_test(first.scores, second.scores)
    shared = [item for item, scores in first.scores.items() if scores and second.scores.get(item)]
    return EvaluationComparison(
        first,
        second,
        _mean(first, shared),
        _mean(second, shared),
        test,
        # The models are named above the scores.
        (
            *(found.text for found in differences(first, second) if found.name != "model"),
            *remarks(first, second, test),
        ),
    )


def read_evaluation(path: Path) -> LoadedEvaluation:
    """Read a folder, its metrics.json, or a groups file; ConfigError when it has no scores by item."""
    if path.is_dir():
        report = path / METRICS
        if report.exists():
            return _from_report(report)
        if (path / GROUPS).exists():
            return _from_groups(path / GROUPS, finished=False)
        raise ConfigError(f"{path} contains neither {METRICS} nor {GROUPS}; give the output folder of `evaluate`")
    if not path.exists():
        raise ConfigError(f"{path} does not exist; give the output folder of `evaluate`, or its {METRICS}")
    return _from_report(path) if path.suffix == ".json" else _from_groups(path)


def _from_report(path: Path) -> LoadedEvaluation:
    try:
        report = fast_json.loads(path.read_bytes())
        items = report.get("items")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is not the report of an evaluation: {error}") from error
    if not isinstance(items, list):
        raise ConfigError(
            f"{path} has no scores by item: a custom evaluate() or an older version wrote it; evaluate again with the "
            "default evaluate() to compare"
        )
    return LoadedEvaluation(
        path=path,
        provenance=report["provenance"],
        scores={item["item_id"]: item["scores"] for item in items},
        unscored=sum(item["unscored"] for item in items),
        samples=report["samples_per_item"],
        temperature=report["generation_parameters"].get("temperature"),
        limit=report["limit"],
        settings=report["settings"],
        policy=report.get("policy"),
        finished_at=report.get("finished_at") or "",
    )


def _from_groups(path: Path, *, finished: bool = True) -> LoadedEvaluation:
    provenance: dict[str, Any] | None = None
    scores: dict[str, list[float]] = {}
    unscored = samples = 0
    split = "eval"
    for group in read_groups(path):
        provenance, split = provenance or asdict(group.provenance), group.split
        scores.setdefault(group.item_id, []).extend(group.scores)
        unscored += len(group.rollouts) - len(group.scores)
        samples = max(samples, len(group.rollouts))
    if provenance is None:
        raise ConfigError(f"{path} contains no groups yet; let the evaluation finish an item first")
    return LoadedEvaluation(path, provenance, scores, unscored, samples, finished=finished, split=split)


def _mean(side: LoadedEvaluation, shared: Sequence[str]) -> Interval:
    mean = mean_interval([side.scores[item] for item in shared])
    if mean is None:
        raise ConfigError(f"{side.path} has no scored item in common with the other evaluation")
    return mean


def _side_summary(side: LoadedEvaluation, mean: Interval) -> dict[str, Any]:
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


def differences(first: LoadedEvaluation, second: LoadedEvaluation) -> Iterator[Difference]:
    """What differs between the two besides their scores, in the order in which it matters."""
    before, after = first.provenance, second.provenance
    if first.model != second.model:
        yield Difference("model", first.model, second.model, f"the models differ: {first.model} and {second.model}")
    if before["environment"] != after["environment"]:
        names = before["environment"], after["environment"]
        yield Difference("environment", *names, f"the environments differ: {names[0]} and {names[1]}")
    elif before["environment_hash"] != after["environment_hash"]:
        yield Difference(
            "environment file",
            None,
            None,
            "the environment's file differs, so its reward may too; `hermes-rl rescore` scores both with the same one",
        )
    if before["dataset_hash"] != after["dataset_hash"]:
        text = "the datasets differ in their items or split; only the items in both are compared"
        yield Difference("dataset", None, None, text)
    if first.split != second.split:
        yield Difference("split", first.split, second.split, f"the splits differ: {first.split} and {second.split}")
    if first.samples != second.samples:
        text = f"the samples per item differ: {first.samples} and {second.samples}"
        yield Difference("samples per item", first.samples, second.samples, text)
    if None in {first.temperature, second.temperature}:
        text = "the temperature is not known for both"
        yield Difference("temperature", first.temperature, second.temperature, text)
    elif first.temperature != second.temperature:
        text = f"the temperature differs: {first.temperature:g} and {second.temperature:g}"
        yield Difference("temperature", first.temperature, second.temperature, text)
    yield from _setting_differences(first, second)


def remarks(first: LoadedEvaluation, second: LoadedEvaluation, test: PairedResult | None) -> Iterator[str]:
    """What else to know when reading the comparison; `test` is None when it could not be made."""
    only = ((first, test.only_in_first), (second, test.only_in_second)) if test else ()
    for side, alone in only:
        if alone:
            yield f"{len(alone)} scored {'item is' if len(alone) == 1 else 'items are'} only in {side.path}"
    for side in (first, second):
        yield from _side_remarks(side)


def _side_remarks(side: LoadedEvaluation) -> Iterator[str]:
    if side.unscored:
        noun = "rollout has" if side.unscored == 1 else "rollouts have"
        yield f"{side.unscored} {noun} no score in {side.path}; its mean is biased unless that is random"
    if side.policy and side.policy["mixed"]:
        yield f"{side.path} was sampled from {policy_text(side.policy)}"
    if side.limit:
        yield f"{side.path} was stopped early by {side.limit}"
    if not side.finished:
        yield f"{side.path} is an unfinished evaluation"


def _setting_differences(first: LoadedEvaluation, second: LoadedEvaluation) -> Iterator[Difference]:
    if not first.settings or not second.settings:
        if first.model == second.model and first.provenance["config_hash"] != second.provenance["config_hash"]:
            text = "the settings differ; compare the reports (metrics.json) to see which"
            yield Difference("settings", None, None, text)
        return
    names = first.settings.keys() | second.settings.keys()
    for name in sorted(names - REPORTED_SEPARATELY):
        before, after = first.settings.get(name), second.settings.get(name)
        # Reports of older versions hold the hash of a text, a list or an object.
        if before == after or content_id(before) == after or before == content_id(after):
            continue
        short = len(str(before)) <= MAX_SHOWN and len(str(after)) <= MAX_SHOWN
        values = f": {before} and {after}" if short else ""
        yield Difference(name, before, after, f"the setting {name} differs{values}")

"""Evaluations: the metrics of one with their intervals, and two compared on their common items.

Always true: "significant" means a paired test by item; metrics that only come from two reports are shown side by side
without a test.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.evaluation.compare import LoadedEvaluation, differences, remarks
from hermes_rl.evaluation.statistics.intervals import mean_interval
from hermes_rl.evaluation.statistics.paired import PairedResult, paired_test
from hermes_rl.viewer import lenient_json
from hermes_rl.viewer.lenient_json import as_int, as_mapping, as_number, as_str
from hermes_rl.viewer.responses.rollout import truncate

MAX_REPORT_BYTES = 64 * 2**20
MAX_NAMES = 300
MAX_ITEMS = 200
LEVEL = 0.95


def read_report(folder: Path | None) -> Mapping[str, Any]:
    """The metrics.json of an evaluation; empty until it finishes."""
    try:
        path = (folder or Path()) / "metrics.json"
        return (
            as_mapping(lenient_json.loads(path.read_bytes()))
            if folder and path.stat().st_size <= MAX_REPORT_BYTES
            else {}
        )
    except (OSError, ValueError):
        return {}


def metrics_response(report: Mapping[str, Any]) -> dict[str, Any]:
    values = as_mapping(report.get("metrics"))
    return {
        "metrics": metric_rows(values),
        "task": report.get("task"),
        "model": report.get("model"),
        "samples": report.get("samples"),
        "seconds": as_number(report.get("seconds")),
        "generation_parameters": truncate(report.get("generation_parameters")),
        "limit": report.get("limit"),
        "finished_at": report.get("finished_at"),
    }


def metric_rows(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The numeric metrics, each with its interval if it has one."""
    names = [name for name in values if not name.endswith(("/low", "/high")) and as_number(values[name]) is not None]
    return [
        {
            "name": name,
            "value": as_number(values[name]),
            "low": as_number(values.get(f"{name}/low")),
            "high": as_number(values.get(f"{name}/high")),
        }
        for name in names[:MAX_NAMES]
    ]


@dataclass(frozen=True, slots=True)
class ComparedSource:
    """What is known of one side of a comparison; `samples` is the size of its groups."""

    name: str
    report: Mapping[str, Any]
    provenance: Mapping[str, Any]
    scores: Mapping[str, Sequence[float]]
    unscored: int
    samples: int | None
    split: str | None
    model: str | None
    temperature: float | None

    def loaded(self) -> LoadedEvaluation:
        """As `hermes-rl compare` reads it, with None for what its record does not have."""
        known = as_mapping(self.report.get("provenance")) or self.provenance
        names = ("environment", "environment_hash", "dataset_hash", "config_hash", "model")
        policy = as_mapping(self.report.get("policy"))
        return LoadedEvaluation(
            path=Path(self.name),
            provenance={name: known.get(name) for name in names} | ({"model": self.model} if self.model else {}),
            scores=self.scores,
            unscored=self.unscored,
            samples=as_int(self.report.get("samples_per_item")) or self.samples,
            temperature=self.temperature,
            limit=as_str(self.report.get("limit")),
            finished=bool(self.report) or self.split != "eval",
            settings=as_mapping(self.report.get("settings")),
            policy=policy if policy.keys() >= {"version", "low", "high", "mixed", "due"} else None,
            split=self.split or "eval",
        )


def compare_response(first_side: ComparedSource, second_side: ComparedSource) -> dict[str, Any]:
    """The paired test of the mean reward, the other metrics in both reports, and what else differs."""
    scores = first_side.scores, second_side.scores
    reports = first_side.report, second_side.report
    test = _paired(*scores)
    metrics = [_mean_reward(*scores, test)]
    first, second = ({row["name"]: row for row in metric_rows(as_mapping(report.get("metrics")))} for report in reports)
    for name in [name for name in first if name in second and name != "eval/mean_reward"][:MAX_NAMES]:
        a, b = first[name], second[name]
        metrics.append(
            {
                "name": name,
                "a": {part: a[part] for part in ("value", "low", "high")},
                "b": {part: b[part] for part in ("value", "low", "high")},
                "difference": b["value"] - a["value"],
                "low": None,
                "high": None,
                "significant": False,
                "note": "not tested",
            }
        )
    loaded = first_side.loaded(), second_side.loaded()
    return {
        "metrics": metrics,
        "items": _items(*scores),
        "differences": [
            {"name": found.name, "a": truncate(found.first), "b": truncate(found.second), "text": found.text}
            for found in list(differences(*loaded))[:MAX_NAMES]
        ],
        "same": _same(*loaded),
        "remarks": list(remarks(*loaded, test if isinstance(test, PairedResult) else None)),
    }


def _same(first: LoadedEvaluation, second: LoadedEvaluation) -> list[dict[str, Any]]:
    """The settings that decide a result and are equal on both sides."""
    pairs = {
        "model": (first.model, second.model),
        "environment": (first.provenance["environment"], second.provenance["environment"]),
        "split": (first.split, second.split),
        "samples per item": (first.samples, second.samples),
        "temperature": (first.temperature, second.temperature),
        "max tokens": (first.settings.get("max_token_length"), second.settings.get("max_token_length")),
    }
    return [{"name": name, "value": a} for name, (a, b) in pairs.items() if a == b and a not in (None, "None")]


def _paired(a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]) -> PairedResult | ConfigError:
    try:
        return paired_test(a, b)
    except ConfigError as error:
        return error


def _mean_reward(
    a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]], test: PairedResult | ConfigError
) -> dict[str, Any]:
    shared = [item for item, values in a.items() if values and b.get(item)]
    if isinstance(test, ConfigError):
        means = (_mean(list(a.values())), _mean(list(b.values())))
        return _row(means, None, None, None, significant=False, note=str(test))
    means = (_mean([a[item] for item in shared]), _mean([b[item] for item in shared]))
    p = "below 0.0001" if test.p_value < 0.0001 else f"{test.p_value:.4f}"
    note = f"{len(shared)} common items; p-value {p} ({test.method}, paired by item)"
    found = test.difference
    return _row(means, found.estimate, found.low, found.high, significant=test.p_value < 1 - LEVEL, note=note)


def _row(
    means: tuple[dict[str, Any], dict[str, Any]],
    difference: float | None,
    low: float | None,
    high: float | None,
    *,
    significant: bool,
    note: str,
) -> dict[str, Any]:
    return {
        "name": "mean reward",
        "a": means[0],
        "b": means[1],
        "difference": difference,
        "low": low,
        "high": high,
        "significant": significant,
        "note": note,
    }


def _mean(scores: Sequence[Sequence[float]]) -> dict[str, Any]:
    found = mean_interval(scores)
    if found is None:
        return {"value": None, "low": None, "high": None}
    return {"value": found.estimate, "low": found.low, "high": found.high}


def _items(a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"item_id": item, "title": "", "a": sum(values) / len(values), "b": sum(b[item]) / len(b[item])}
        for item, values in a.items()
        if values and b.get(item)
    ]
    return sorted(rows, key=lambda row: (-abs(row["b"] - row["a"]), row["item_id"]))[:MAX_ITEMS]

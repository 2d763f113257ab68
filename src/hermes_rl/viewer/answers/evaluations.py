"""Evaluations: the numbers of one with their intervals, and two compared on the items they share.

Always true: what is called significant was tested item by item; numbers that only stand in two reports are set side by
side and no more is said of them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.statistics.intervals import mean_interval
from hermes_rl.statistics.paired import compare
from hermes_rl.viewer import lenient
from hermes_rl.viewer.answers.rollout import cut
from hermes_rl.viewer.lenient import mapping, number

LARGEST = 64 * 2**20
NAMES = 300
ITEMS = 200
LEVEL = 0.95


def read_report(folder: Path | None) -> Mapping[str, Any]:
    """metrics.json of an evaluation; empty while it has not finished."""
    try:
        path = (folder or Path()) / "metrics.json"
        return mapping(lenient.loads(path.read_bytes())) if folder and path.stat().st_size <= LARGEST else {}
    except (OSError, ValueError):
        return {}


def metrics_answer(report: Mapping[str, Any]) -> dict[str, Any]:
    values = mapping(report.get("metrics"))
    return {
        "metrics": measured(values),
        "task": report.get("task"),
        "model": report.get("model"),
        "samples": report.get("samples"),
        "seconds": number(report.get("seconds")),
        "generation_parameters": cut(report.get("generation_parameters")),
        "limit": report.get("limit"),
        "finished_at": report.get("finished_at"),
    }


def measured(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The metrics that are numbers, each with its interval where it has one."""
    names = [name for name in values if not name.endswith(("/low", "/high")) and number(values[name]) is not None]
    return [
        {
            "name": name,
            "value": number(values[name]),
            "low": number(values.get(f"{name}/low")),
            "high": number(values.get(f"{name}/high")),
        }
        for name in names[:NAMES]
    ]


def comparison(
    scores: tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]],
    reports: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> dict[str, Any]:
    """The paired test of the mean reward, then the other numbers that both reports have."""
    metrics = [_mean_reward(*scores)]
    first, second = ({one["name"]: one for one in measured(mapping(report.get("metrics")))} for report in reports)
    for name in [name for name in first if name in second and name != "eval/mean_reward"][:NAMES]:
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
                "note": "not tested: from the two reports",
            }
        )
    return {"metrics": metrics, "items": _items(*scores)}


def _mean_reward(a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    shared = [item for item, values in a.items() if values and b.get(item)]
    try:
        test = compare(a, b)
    except ConfigError as error:
        means = (_mean(list(a.values())), _mean(list(b.values())))
        return _row(means, None, None, None, significant=False, note=str(error))
    means = (_mean([a[item] for item in shared]), _mean([b[item] for item in shared]))
    p = "below 0.0001" if test.p_value < 0.0001 else f"{test.p_value:.4f}"
    note = f"{len(shared)} common items; p {p} ({test.method}, paired by item)"
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
    return sorted(rows, key=lambda row: (-abs(row["b"] - row["a"]), row["item_id"]))[:ITEMS]

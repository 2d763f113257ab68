"""A training run: its learning curve and live status.

Always true: a curve has a bounded number of points and names; a value that was not measured is None.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.sinks.tail import MetricRows
from hermes_rl.viewer.lenient_json import as_list, as_mapping, as_number

MAX_POINTS = 1_000
MAX_NAMES = 150
NORMAL_95 = 1.96
RECENT_STEPS = 20
HIDDEN = {"time", "step", "resumed"}


def curve(steps: MetricRows) -> dict[str, Any]:
    rows = steps.spaced
    every = max(1, math.ceil(len(rows) / MAX_POINTS))
    # The newest point is always included.
    chosen = rows[(len(rows) - 1) % every :: every] if rows else []
    names = sorted({name for row in chosen for name, value in row.items() if as_number(value) is not None} - HIDDEN)
    series = {name: [as_number(row.get(name)) for row in chosen] for name in names[:MAX_NAMES]}
    return {
        "steps": [row["step"] for row in chosen],
        "times": [as_number(row.get("time")) for row in chosen],
        "series": series,
        "bands": _bands(chosen),
        "every": every * steps.every,
    }


def read_steps(path: Path, read: Callable[[Path], MetricRows]) -> MetricRows:
    """The rows of a metrics file; none when it is missing or of another format."""
    try:
        return read(path)
    except (OSError, ConfigError):
        return MetricRows([], [], 1)


def live(status: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], queue: int | None) -> dict[str, Any]:
    """`status` is that of `hermes-rl run status`, `rows` the trainer's steps, `queue` the number of queued rollouts."""
    metrics = as_mapping(status.get("metrics"))
    last = rows[-1] if rows else {}
    recent = rows[-RECENT_STEPS:]
    return {
        "state": status.get("status"),
        "reason": status.get("reason"),
        "stalled": as_mapping(status.get("stalled")).get("why"),
        "parts": [
            {
                "name": name,
                "state": as_mapping(part).get("status"),
                "restarts": as_mapping(part).get("restarts"),
                "problem": as_mapping(part).get("problem"),
            }
            for name, part in as_mapping(status.get("processes")).items()
        ],
        "step": metrics.get("step"),
        "total_steps": metrics.get("total_steps"),
        "minutes_left": metrics.get("minutes_left"),
        "running_minutes": status.get("running_time_minutes"),
        "tokens_per_second": as_number(last.get("tokens/per_second")),
        "groups_per_minute": _groups_per_minute(recent),
        "staleness": as_number(last.get("staleness/mean")),
        "queue": queue,
        "environments": as_list(status.get("environments")),
        "updated_at": as_number(last.get("time")),
    }


def _bands(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """The 95% intervals of each step's mean reward, assuming independent rollouts, and of its audit gap."""
    measured = [
        tuple(as_number(row.get(name)) for name in ("reward/mean", "reward/std", "rollouts/scored")) for row in rows
    ]
    bounded = _within_0_and_1(rows)
    ends = [
        step_interval(mean, spread, count, bounded=bounded)
        if mean is not None and spread is not None and count
        else (None, None)
        for mean, spread, count in measured
    ]
    gaps = [(as_number(row.get("audit/gap_low")), as_number(row.get("audit/gap_high"))) for row in rows]
    return {
        name: {"low": [low for low, _ in bands], "high": [high for _, high in bands]}
        for name, bands in (("reward/mean", ends), ("audit/gap", gaps))
        if any(low is not None for low, _ in bands)
    }


def step_interval(mean: float, spread: float, count: float, *, bounded: bool) -> tuple[float, float]:
    """The 95% interval of a mean of `count` scores with this standard deviation.

    Of scores from 0 to 1 it is Wilson's, which never leaves that range, with as many 0/1 scores as have this error.
    """
    if not bounded:
        half = NORMAL_95 * spread / math.sqrt(count)
        return mean - half, mean + half
    # Equal scores say little about the next one: they count as 0/1 scores.
    size = max(count, count * mean * (1 - mean) / spread**2) if spread else count
    square = NORMAL_95**2
    centre = (mean + square / (2 * size)) / (1 + square / size)
    half = NORMAL_95 * math.sqrt(mean * (1 - mean) / size + square / (4 * size**2)) / (1 + square / size)
    return max(0.0, centre - half), min(1.0, centre + half)


def _within_0_and_1(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all scores of the run are from 0 to 1, as far as its metrics tell."""
    lowest = [value for row in rows for name in ("reward/min", "reward/mean") if (value := as_number(row.get(name)))]
    highest = [value for row in rows for name in ("reward/max", "reward/mean") if (value := as_number(row.get(name)))]
    return min(lowest, default=0.0) >= 0 and max(highest, default=0.0) <= 1


def _groups_per_minute(rows: Sequence[Mapping[str, Any]]) -> float | None:
    times = [at for row in rows if (at := as_number(row.get("time"))) is not None]
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    groups = sum(as_number(row.get("groups/total")) or 0.0 for row in rows[1:])
    return groups * 60 / (times[-1] - times[0])

"""A training run: its learning curve and how it is now.

Always true: a curve has at most so many points and names, whatever the run's length; a number that was not measured
is None.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.sinks.following import Steps
from hermes_rl.viewer.lenient import mapping, number, sequence

POINTS = 1_000
NAMES = 150
NORMAL_95 = 1.96
RECENT = 20
HIDDEN = {"time", "step", "resumed"}


def curve(steps: Steps) -> dict[str, Any]:
    rows = steps.spaced
    every = max(1, math.ceil(len(rows) / POINTS))
    # The newest point is always one of them.
    chosen = rows[(len(rows) - 1) % every :: every] if rows else []
    names = sorted({name for row in chosen for name, value in row.items() if number(value) is not None} - HIDDEN)
    series = {name: [number(row.get(name)) for row in chosen] for name in names[:NAMES]}
    return {
        "steps": [row["step"] for row in chosen],
        "times": [number(row.get("time")) for row in chosen],
        "series": series,
        "bands": _bands(chosen),
        "every": every * steps.every,
    }


def steps_of(path: Path, read: Callable[[Path], Steps]) -> Steps:
    """None where the file is not there, or is of something else."""
    try:
        return read(path)
    except (OSError, ConfigError):
        return Steps([], [], 1)


def live(status: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], queue: int | None) -> dict[str, Any]:
    """`status` is what `hermes-rl run status` tells, `rows` the trainer's steps, `queue` the rollouts that wait."""
    metrics = mapping(status.get("metrics"))
    last = rows[-1] if rows else {}
    recent = rows[-RECENT:]
    return {
        "state": status.get("status"),
        "reason": status.get("reason"),
        "stalled": mapping(status.get("stalled")).get("why"),
        "parts": [
            {
                "name": name,
                "state": mapping(part).get("status"),
                "restarts": mapping(part).get("restarts"),
                "problem": mapping(part).get("problem"),
            }
            for name, part in mapping(status.get("processes")).items()
        ],
        "step": metrics.get("step"),
        "total_steps": metrics.get("total_steps"),
        "minutes_left": metrics.get("minutes_left"),
        "running_minutes": status.get("running_time_minutes"),
        "tokens_per_second": number(last.get("tokens/per_second")),
        "groups_per_minute": _groups_per_minute(recent),
        "staleness": number(last.get("staleness/mean")),
        "queue": queue,
        "environments": sequence(status.get("environments")),
        "updated_at": number(last.get("time")),
    }


def _bands(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """95% of the mean reward of each step, its rollouts taken as independent."""
    lows: list[float | None] = []
    highs: list[float | None] = []
    for row in rows:
        mean, spread, count = (number(row.get(name)) for name in ("reward/mean", "reward/std", "rollouts/scored"))
        known = mean is not None and spread is not None and count
        half = NORMAL_95 * (spread or 0.0) / math.sqrt(count or 1.0)
        lows.append((mean or 0.0) - half if known else None)
        highs.append((mean or 0.0) + half if known else None)
    if not any(low is not None for low in lows):
        return {}
    return {"reward/mean": {"low": lows, "high": highs}}


def _groups_per_minute(rows: Sequence[Mapping[str, Any]]) -> float | None:
    times = [at for row in rows if (at := number(row.get("time"))) is not None]
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    groups = sum(number(row.get("groups/total")) or 0.0 for row in rows[1:])
    return groups * 60 / (times[-1] - times[0])

"""How wrong a forecast was: the first steps of a run beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.evaluation.forecast import Range

# Figures of a forecast that a run has too, with how they are called in tables.
CHECKED = {
    "zero_signal": "groups with equal scores",
    "step_tokens": "tokens per step",
    "step_seconds": "seconds per step",
}


@dataclass(frozen=True, slots=True)
class Checked:
    """One figure: what was forecast, and what the run's first steps had."""

    name: str
    predicted: Range
    observed: float

    @property
    def inside(self) -> bool:
        return self.predicted.holds(self.observed)

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "predicted": list(self.predicted), "observed": self.observed, "inside": self.inside}


def first_steps(
    trainer: Sequence[Mapping[str, Any]], environments: Sequence[Mapping[str, Any]], steps: int
) -> dict[str, float]:
    """The figures of a run's first `steps`, from the rows of its trainer and of its environments."""
    rows = trainer[:steps]
    if not rows:
        raise ConfigError("the run has made no step yet; check the forecast after its first steps")
    end = float(rows[-1]["time"])
    windows = [row for row in environments if float(row["time"]) <= end and "train/groups" in row]
    made = sum(float(row["train/groups"]) for row in windows) or _total(rows, "groups/total")
    equal = _total(windows, "train/withheld_groups/equal_scores") + _total(rows, "groups/zero_signal")
    found = {
        "step_tokens": fmean(float(row.get("tokens/total", 0.0)) for row in rows),
        "step_seconds": fmean(float(row["time/step"]) for row in rows),
    }
    return {"zero_signal": equal / made, **found} if made else found


def check(forecast: Mapping[str, Any], observed: Mapping[str, float]) -> list[Checked]:
    """Each figure that both have; `forecast` is a saved one."""
    return [Checked(name, Range(*forecast[name]), observed[name]) for name in CHECKED if name in observed]


def _total(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(float(row.get(name) or 0.0) for row in rows)

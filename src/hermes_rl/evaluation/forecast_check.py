"""How wrong a forecast was: compared with the first steps of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.evaluation.prediction import Range

SHARE = "zero_signal"
# Figures of a forecast that a run has too, with how they are called in tables.
CHECKED = {
    SHARE: "groups with equal scores",
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

    @property
    def error(self) -> float:
        """Observed less predicted: in shares for a share, else relative to what was predicted."""
        difference = self.observed - self.predicted.estimate
        return difference if self.name == SHARE else difference / self.predicted.estimate

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "predicted": list(self.predicted),
            "observed": self.observed,
            "inside": self.inside,
            "error": self.error,
        }


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
        "wait_seconds": fmean(float(row.get("time/wait", row["time/step"])) for row in rows),
    }
    return {"zero_signal": equal / made, **found} if made else found


def check(forecast: Mapping[str, Any], observed: Mapping[str, float]) -> list[Checked]:
    """Each figure that both have; `forecast` is a saved one.

    A forecast without the optimizer's time is compared with how long the trainer waited for rollouts.
    """
    found = dict(observed)
    if not forecast["plan"]["optimizer_seconds"] and "wait_seconds" in found:
        found["step_seconds"] = found["wait_seconds"]
    predicted = {name: Range(*map(_number, forecast[name])) for name in CHECKED if name in found}
    # Nothing was predicted: groups that were read from a file say nothing of the time.
    return [
        Checked(name, range_, found[name]) for name, range_ in predicted.items() if name == SHARE or range_.estimate > 0
    ]


def _number(saved: float | None) -> float:
    """JSON has no infinity; it is saved as null."""
    return math.inf if saved is None else saved


def _total(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return sum(float(row.get(name) or 0.0) for row in rows)

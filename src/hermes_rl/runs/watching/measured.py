"""What a run has measured so far, read from the trainer's metrics file and from each environment's.

Always true: every number given is one that JSON has; what was not measured is None, and a file that cannot be read
makes a sentence and no error.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.run_file import RunFile
from hermes_rl.sinks.reading import read_metrics

TRAINER_FILE = "metrics.jsonl"
# Of the trainer's names, those that a person asks for, by the seed's word or a plain one.
TRAINED = {
    "reward_mean": "reward/mean",
    "reward_std": "reward/std",
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "entropy": "entropy",
    "kl": "kl/sample_train_k3",
    "logprobs_diff": "logprobs/diff",
    "staleness_mean": "staleness/mean",
}
PASSED = ("eval/pass@1", "eval/percent_correct")
RECENT = 50
Row = dict[str, Any]
Read = Callable[[Path], list[Row]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of an environment, after so many steps of the trainer."""

    environment: str
    step: int
    at: float
    reward_mean: float | None
    percent_correct: float | None

    def plain(self) -> dict[str, Any]:
        return {
            "environment": self.environment,
            "step": self.step,
            "at": self.at,
            "reward_mean": self.reward_mean,
            "percent_correct": self.percent_correct,
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """`steps` are the trainer's, `environments` the lines of each environment by its name, all in order."""

    steps: tuple[Row, ...] = ()
    environments: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        return int(self.steps[-1]["step"]) if self.steps else 0

    @property
    def times(self) -> list[float]:
        return [at for row in self.steps if (at := number(row.get("time"))) is not None]

    @property
    def step_seconds(self) -> float | None:
        """The median time between two of the last steps."""
        times = self.times[-RECENT:]
        return median(after - before for before, after in pairwise(times)) if times[1:] else None

    @property
    def heard_at(self) -> float:
        """When an environment last wrote a line."""
        lines = [number(rows[-1].get("time")) for rows in self.environments.values() if rows]
        return max((at for at in lines if at is not None), default=0.0)

    def evaluations(self) -> list[Evaluation]:
        times = self.times
        found = [
            Evaluation(name, self._step_at(at, times), at, number(row.get("eval/mean_reward")), first(row, PASSED))
            for name, rows in self.environments.items()
            for row in rows
            if (at := number(row.get("time"))) is not None and any(key.startswith("eval/") for key in row)
        ]
        return sorted(found, key=lambda one: one.at)

    def _step_at(self, moment: float, times: Sequence[float]) -> int:
        passed = bisect_right(times, moment)
        return int(self.steps[passed - 1]["step"]) if passed else 0


def read_measured(places: RunPlaces, run_file: RunFile | None, read: Read = read_metrics) -> Measured:
    problems: list[str] = []
    environments: dict[str, tuple[Row, ...]] = {}
    for one in run_file.environments if run_file else ():
        # A resumed run has its API elsewhere, and an environment a file for each API.
        files = sorted(places.serving(run_file.part_of(one)).glob("*.metrics.jsonl")) if run_file else []
        rows = [row for path in files for row in _rows(path, problems, read)]
        environments[one.name] = tuple(sorted(rows, key=lambda row: number(row.get("time")) or 0.0))
    return Measured(tuple(_rows(places.folder / TRAINER_FILE, problems, read)), environments, tuple(problems))


def metrics_of(measured: Measured, total_steps: int | None) -> dict[str, Any]:
    """The newest numbers of the whole run."""
    last = measured.steps[-1] if measured.steps else {}
    newest = _newest_evaluations(measured)
    seconds = measured.step_seconds
    left = None if total_steps is None or seconds is None else max(0, total_steps - measured.step) * seconds / 60
    return {
        "step": measured.step,
        "total_steps": total_steps,
        **{name: number(last.get(key)) for name, key in TRAINED.items()},
        "percent_correct": _together(measured),
        "eval_percent_correct": _mean(one.percent_correct for one in newest),
        "eval_reward_mean": _mean(one.reward_mean for one in newest),
        "seconds_per_step": None if seconds is None else round(seconds, 3),
        "minutes_left": None if left is None else round(left, 1),
    }


def environment_metrics(measured: Measured, name: str) -> dict[str, Any]:
    """The newest numbers of one of its environments."""
    rows = measured.environments.get(name, ())
    trained = measured.steps[-1].get(f"reward/environment/{name}") if measured.steps else None
    alone = len(measured.environments) == 1 and measured.steps
    evaluation = next((one for one in reversed(measured.evaluations()) if one.environment == name), None)
    return {
        "reward_mean": number(measured.steps[-1].get("reward/mean") if alone else trained),
        "percent_correct": newest(rows, "train/percent_correct"),
        "groups": newest(rows, "serve/groups"),
        "eval_reward_mean": evaluation.reward_mean if evaluation else None,
        "eval_percent_correct": evaluation.percent_correct if evaluation else None,
    }


def number(value: Any) -> float | None:
    """A finite number, else None."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if sound else None


def first(row: Mapping[str, Any], names: Iterable[str]) -> float | None:
    return next((value for name in names if (value := number(row.get(name))) is not None), None)


def newest(rows: Sequence[Row], name: str) -> float | None:
    return next((value for row in reversed(rows) if (value := number(row.get(name))) is not None), None)


def _newest_evaluations(measured: Measured) -> list[Evaluation]:
    return list({one.environment: one for one in measured.evaluations()}.values())


def _together(measured: Measured) -> float | None:
    """The share of passed rollouts in each environment's newest line, by how many were scored."""
    shares = []
    for rows in measured.environments.values():
        for row in reversed(rows):
            share, scored = number(row.get("train/percent_correct")), number(row.get("train/scored"))
            if share is not None:
                shares.append((share, 1.0 if scored is None else scored))
                break
    weight = sum(scored for _, scored in shares)
    return sum(share * scored for share, scored in shares) / weight if weight else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rows(path: Path, problems: list[str], read: Read) -> list[Row]:
    try:
        return read(path)
    except FileNotFoundError:
        return []
    except ConfigError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
    return []

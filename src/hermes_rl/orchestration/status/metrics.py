"""A run's metrics, read from the metrics files of the trainer and of each environment.

Always true: every number is finite; a missing metric is None, and an unreadable file goes into `problems`.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.run_file import RunFile
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.sinks.metrics_file import read_metrics

TRAINER_FILE = "metrics.jsonl"
# The trainer's metrics shown to people, under the seed's names or plain ones.
TRAINER_METRICS = {
    "reward_mean": "reward/mean",
    "reward_std": "reward/std",
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "entropy": "entropy",
    "kl": "kl/sample_train_k3",
    "logprobs_diff": "logprobs/diff",
    "staleness_mean": "staleness/mean",
}
PASS_RATE_KEYS = ("eval/pass@1", "eval/percent_correct")
DRIFT = "train/drift_"
RECENT_STEPS = 50
Row = dict[str, Any]
ReadMetrics = Callable[[Path], list[Row]]


@dataclass(frozen=True, slots=True)
class RunEvaluation:
    """One evaluation of an environment, after trainer step `step`."""

    environment: str
    step: int
    at: float
    reward_mean: float | None
    percent_correct: float | None


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """`steps` are the trainer's rows, `environments` the rows of each environment by name, in order."""

    steps: tuple[Row, ...] = ()
    environments: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def step(self) -> int:
        return int(self.steps[-1]["step"]) if self.steps else 0

    @property
    def times(self) -> list[float]:
        return [at for row in self.steps if (at := finite_number(row.get("time"))) is not None]

    @property
    def step_seconds(self) -> float | None:
        """The median time of recent steps."""
        times = self.times[-RECENT_STEPS:]
        return median(after - before for before, after in pairwise(times)) if times[1:] else None

    @property
    def environments_seen_at(self) -> float:
        """When an environment last wrote a row."""
        times = [finite_number(rows[-1].get("time")) for rows in self.environments.values() if rows]
        return max((at for at in times if at is not None), default=0.0)

    def evaluations(self) -> list[RunEvaluation]:
        times = self.times
        found = [
            RunEvaluation(
                name,
                self._step_at(at, times),
                at,
                finite_number(row.get("eval/mean_reward")),
                first_number(row, PASS_RATE_KEYS),
            )
            for name, rows in self.environments.items()
            for row in rows
            if (at := finite_number(row.get("time"))) is not None and any(key.startswith("eval/") for key in row)
        ]
        return sorted(found, key=lambda evaluation: evaluation.at)

    def _step_at(self, moment: float, times: Sequence[float]) -> int:
        passed = bisect_right(times, moment)
        return int(self.steps[passed - 1]["step"]) if passed else 0


def read_run_metrics(paths: RunPaths, run_file: RunFile | None, read: ReadMetrics = read_metrics) -> RunMetrics:
    problems: list[str] = []
    environments: dict[str, tuple[Row, ...]] = {}
    for entry in run_file.environments if run_file else ():
        # A resumed run may have its API at another URL, and an environment has one file per API.
        files = sorted(paths.serving(run_file.part_of(entry)).glob("*.metrics.jsonl")) if run_file else []
        rows = [row for path in files for row in _read_rows(path, problems, read)]
        environments[entry.name] = tuple(sorted(rows, key=lambda row: finite_number(row.get("time")) or 0.0))
    return RunMetrics(tuple(_read_rows(paths.folder / TRAINER_FILE, problems, read)), environments, tuple(problems))


def latest_metrics(metrics: RunMetrics, total_steps: int | None, now: float | None = None) -> dict[str, Any]:
    """The latest metrics of the whole run; `now`, in Unix seconds, counts the remaining time down between steps."""
    last = metrics.steps[-1] if metrics.steps else {}
    evaluations = _latest_evaluations(metrics)
    seconds = metrics.step_seconds
    minutes = None
    if total_steps is not None and seconds is not None:
        running = 0.0 if now is None else min(max(0.0, now - metrics.times[-1]), seconds)
        minutes = max(0.0, (total_steps - metrics.step) * seconds - running) / 60
    return {
        "step": metrics.step,
        "total_steps": total_steps,
        **{name: finite_number(last.get(key)) for name, key in TRAINER_METRICS.items()},
        "audit": _latest_audit(metrics.steps),
        "percent_correct": _overall_pass_rate(metrics),
        "eval_percent_correct": _mean(evaluation.percent_correct for evaluation in evaluations),
        "eval_reward_mean": _mean(evaluation.reward_mean for evaluation in evaluations),
        "seconds_per_step": None if seconds is None else round(seconds, 3),
        "minutes_left": None if minutes is None else round(minutes, 1),
    }


def environment_metrics(metrics: RunMetrics, name: str) -> dict[str, Any]:
    """The latest metrics of one environment."""
    rows = metrics.environments.get(name, ())
    trained = metrics.steps[-1].get(f"reward/environment/{name}") if metrics.steps else None
    alone = len(metrics.environments) == 1 and metrics.steps
    evaluation = next((last for last in reversed(metrics.evaluations()) if last.environment == name), None)
    return {
        "reward_mean": finite_number(metrics.steps[-1].get("reward/mean") if alone else trained),
        "percent_correct": latest_number(rows, "train/percent_correct"),
        "groups": latest_number(rows, "serve/groups"),
        "eval_reward_mean": evaluation.reward_mean if evaluation else None,
        "eval_percent_correct": evaluation.percent_correct if evaluation else None,
        "drift": _drift(rows),
        "diagnosis": next((str(row["train/diagnosis"]) for row in rows[-1:] if row.get("train/diagnosis")), None),
    }


def finite_number(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if finite else None


def first_number(row: Mapping[str, Any], names: Iterable[str]) -> float | None:
    return next((value for name in names if (value := finite_number(row.get(name))) is not None), None)


def latest_number(rows: Sequence[Row], name: str) -> float | None:
    return next((value for row in reversed(rows) if (value := finite_number(row.get(name))) is not None), None)


def _latest_audit(steps: Sequence[Row]) -> dict[str, Any] | None:
    """The audit of the last step that had one."""
    row = next((row for row in reversed(steps) if "audit/rollouts" in row), None)
    if row is None:
        return None
    names = ("gap", "gap_low", "gap_high", "rollouts", "errors")
    return {"step": row["step"], **{name: finite_number(row.get(f"audit/{name}")) for name in names}}


def _drift(rows: Sequence[Row]) -> dict[str, float]:
    """The signals in the newest row of an environment that has any."""
    found = ({name.removeprefix(DRIFT): row[name] for name in row if name.startswith(DRIFT)} for row in reversed(rows))
    return next((signals for signals in found if signals), {})


def _latest_evaluations(metrics: RunMetrics) -> list[RunEvaluation]:
    return list({evaluation.environment: evaluation for evaluation in metrics.evaluations()}.values())


def _overall_pass_rate(metrics: RunMetrics) -> float | None:
    """The pass rate over all environments' latest rows, weighted by scored rollouts."""
    shares = []
    for rows in metrics.environments.values():
        for row in reversed(rows):
            share, scored = finite_number(row.get("train/percent_correct")), finite_number(row.get("train/scored"))
            if share is not None:
                shares.append((share, 1.0 if scored is None else scored))
                break
    weight = sum(scored for _, scored in shares)
    return sum(share * scored for share, scored in shares) / weight if weight else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _read_rows(path: Path, problems: list[str], read: ReadMetrics) -> list[Row]:
    try:
        return read(path)
    except FileNotFoundError:
        return []
    except ConfigError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
    return []

"""Evaluations of a folder as series of comparable ones, with the regressions among them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.evaluation.compare import (
    EvaluationComparison,
    LoadedEvaluation,
    compare_evaluations,
    read_evaluation,
)
from hermes_rl.evaluation.output_folder import METRICS
from hermes_rl.evaluation.statistics.intervals import Interval, mean_interval

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Entry:
    """One evaluation; `change` compares it with the one before it in its series, on their shared items."""

    evaluation: LoadedEvaluation
    mean: Interval
    change: EvaluationComparison | None

    @property
    def regression(self) -> bool:
        """Significantly worse than the one before it."""
        return self._moved() and self._difference < 0

    @property
    def improvement(self) -> bool:
        return self._moved() and self._difference > 0

    @property
    def _difference(self) -> float:
        return 0.0 if self.change is None else self.change.comparison.difference.estimate

    def _moved(self) -> bool:
        return self.change is not None and self.change.comparison.p_value < ALPHA

    def as_dict(self) -> dict[str, Any]:
        one = self.evaluation
        test = self.change and self.change.comparison
        return {
            "path": str(one.path.parent if one.path.name == METRICS else one.path),
            "model": one.model,
            "finished_at": one.finished_at,
            "mean": self.mean.estimate,
            "low": self.mean.low,
            "high": self.mean.high,
            "items": self.mean.n_items,
            "unscored": one.unscored,
            "change": test and asdict(test.difference),
            "p_value": test and test.p_value,
            "regression": self.regression,
            "improvement": self.improvement,
            "warnings": list(self.change.warnings) if self.change else [],
        }


@dataclass(frozen=True, slots=True)
class Series:
    """Evaluations of one environment with the same decoding, oldest first."""

    environment: str
    temperature: float | None
    samples: int | None
    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        if self.temperature is None:
            return self.environment
        how = "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}"
        samples = "1 sample" if self.samples == 1 else f"{self.samples or '?'} samples"
        return f"{self.environment} · {how} · {samples} per item"


@dataclass(frozen=True, slots=True)
class Board:
    series: tuple[Series, ...]
    unreadable: tuple[str, ...]

    @property
    def regressions(self) -> list[Entry]:
        """The newest evaluations that are significantly worse than the ones before them."""
        return [one.entries[-1] for one in self.series if one.entries[-1].regression]

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": "hermes-rl/board/1",
            "series": [
                {"name": one.name, "evaluations": [each.as_dict() for each in one.entries]} for one in self.series
            ],
            "regressions": len(self.regressions),
            "unreadable": list(self.unreadable),
        }


def read_board(folder: Path) -> Board:
    """Every evaluation below the folder; ConfigError when there is none."""
    found: defaultdict[tuple[str, float | None, int | None], list[LoadedEvaluation]] = defaultdict(list)
    unreadable = []
    for path in sorted(folder.rglob(METRICS)):
        try:
            one = read_evaluation(path)
        except ConfigError as error:
            unreadable.append(str(error))
            continue
        if any(one.scores.values()):
            found[str(one.provenance["environment"]), one.temperature, one.samples].append(one)
        else:
            unreadable.append(f"{path}: no rollout has a score")
    if not found:
        reason = f": {unreadable[0]}" if unreadable else ""
        raise ConfigError(f"no evaluation below {folder}{reason}; `hermes-rl evaluate` writes one, with {METRICS}")
    series = [Series(*key, entries=tuple(_entries(ones))) for key, ones in found.items()]
    return Board(tuple(sorted(series, key=lambda one: one.name)), tuple(unreadable))


def _entries(evaluations: Sequence[LoadedEvaluation]) -> Iterator[Entry]:
    before: LoadedEvaluation | None = None
    for one in sorted(evaluations, key=lambda each: (each.finished_at, str(each.path))):
        mean = mean_interval(one.scores.values())
        if mean is None:
            continue
        shared = before is not None and any(scores and before.scores.get(item) for item, scores in one.scores.items())
        yield Entry(one, mean, compare_evaluations(before, one) if before is not None and shared else None)
        before = one

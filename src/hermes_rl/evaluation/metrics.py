"""Metrics of an evaluation with confidence intervals; model failures are separate from infrastructure failures.

No I/O. Items are the units of every interval. An unscored rollout is in no mean and is counted by failure source,
except one that an error in the environment's own tools ended: it counts as 0, since the policy's arguments may have led
to it. The order in which rollouts finish does not matter.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core.tolerance import passes
from hermes_rl.core.trajectory import Group, Rollout, Span
from hermes_rl.evaluation.statistics.intervals import Interval, mean_interval
from hermes_rl.evaluation.statistics.pass_at_k import PassRate, pass_at_k, pass_hat_k
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.tools.faults import is_tool_fault

UNSCORED = "no_rollout_scored"


@dataclass
class EvaluationCounts:
    """Counts groups as they finish; `items` are the ids of all items of the evaluation, in order."""

    items: Sequence[str]
    samples: int
    temperature: float
    pass_score: float
    tally: RolloutCounts = field(default_factory=RolloutCounts)
    left_out: Counter[str] = field(default_factory=Counter)
    """Items that are not in the metrics, by reason."""
    resumed: int = 0
    scores: dict[str, list[float]] = field(default_factory=dict)
    seats: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """The scores of each seat by item, in environments with several agents."""
    unscored: Counter[str] = field(default_factory=Counter)
    components: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    model_failures: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    spans: Counter[str] = field(default_factory=Counter)

    def add(self, group: Group) -> None:
        self.tally.add(group)
        faults = sum(is_tool_fault(rollout.failure) for rollout in group.rollouts)
        self.scores[group.item_id] = group.scores + [0.0] * faults
        self.unscored[group.item_id] = len(group.rollouts) - len(group.scores) - faults
        for rollout in group.rollouts:
            self.seconds.append(rollout.seconds)
            self.spans.update(time_by_span(rollout))
            if rollout.score is not None and not passes(rollout.score, self.pass_score):
                self.model_failures[str(rollout.stop_reason)] += 1
            if rollout.seat is not None and (rollout.scored or is_tool_fault(rollout.failure)):
                self.seats.setdefault(rollout.seat, {}).setdefault(group.item_id, []).append(rollout.score or 0.0)
            for name, value in rollout.components.items():
                self.components.setdefault(name, {}).setdefault(group.item_id, []).append(value)

    def pass_rates(self) -> dict[str, PassRate]:
        """Of the items; with several agents, k rollouts are compared only if they are of one seat."""
        counts = sample_counts(self.samples)
        rates = self._pass_rates("eval", self.scores, counts[:1] if self.seats else counts)
        for seat, scores in sorted(self.seats.items()):
            rates |= self._pass_rates(f"eval/seat/{seat}", scores, counts)
        return rates

    def _pass_rates(
        self, prefix: str, by_item: Mapping[str, list[float]], counts: Sequence[int]
    ) -> dict[str, PassRate]:
        scores = list(by_item.values())
        rates = {f"{prefix}/pass@{k}": pass_at_k(scores, k, passing=self.pass_score) for k in counts}
        # pass^1 is pass@1.
        return rates | {f"{prefix}/pass^{k}": pass_hat_k(scores, k, passing=self.pass_score) for k in counts[1:]}

    def pass_rate_of_all(self) -> float | None:
        """pass@1 in which a rollout without a score has not passed: no policy gains by avoiding its score."""
        rates = [
            sum(passes(score, self.pass_score) for score in scores) / (len(scores) + self.unscored[item])
            for item, scores in self.scores.items()
        ]
        return statistics.fmean(rates) if rates else None

    def intervals(self) -> dict[str, Interval]:
        """By metric name."""
        found = {"eval/mean_reward": mean_interval(self.scores.values())}
        for seat, scores in sorted(self.seats.items()):
            found[f"eval/seat/{seat}/mean_reward"] = mean_interval(scores.values())
        found |= {name: rate.interval for name, rate in self.pass_rates().items()}
        for name, values in sorted(self.components.items()):
            found[f"eval/component/{name}"] = mean_interval(values.values())
        return {name: interval for name, interval in found.items() if interval is not None}

    def metrics(self, wall_seconds: float) -> dict[str, Any]:
        """All metrics as a flat dict, for metric sinks."""
        tally, budget, intervals = self.tally, self.tally.budget, self.intervals()
        mean = intervals.get("eval/mean_reward")
        metrics: dict[str, Any] = {
            "eval/mean_reward": None,
            "eval/standard_error": _finite(mean.standard_error) if mean else None,
        }
        for name, interval in intervals.items():
            metrics |= {
                name: interval.estimate,
                f"{name}/low": _finite(interval.low),
                f"{name}/high": _finite(interval.high),
            }
        metrics |= {
            "eval/items": len(self.items),
            "eval/items_scored": len(self.scores) - self._unscored_items(),
            "eval/samples_per_item": self.samples,
            "eval/temperature": self.temperature,
            "eval/rollouts": tally.rollouts,
            "eval/scored": len(tally.scores),
            "eval/model_failures": sum(self.model_failures.values()),
            "eval/failures": sum(tally.failures.values()),
            "eval/unscored_share": sum(tally.failures.values()) / tally.rollouts if tally.rollouts else None,
            "eval/pass@1/unscored_as_0": self.pass_rate_of_all(),
            "eval/tool_calls": tally.tool_calls,
            "eval/tool_errors": tally.tool_errors,
            "eval/tokens/prompt": budget.prompt_tokens,
            "eval/tokens/completion": budget.completion_tokens,
            "eval/tokens/per_rollout": budget.tokens / tally.rollouts if tally.rollouts else None,
            "eval/cost": budget.spent,
            "eval/seconds/wall": round(wall_seconds, 3),
            **{f"eval/seconds/rollout_{name}": value for name, value in _duration_stats(self.seconds).items()},
        }
        metrics |= {
            f"{name}/items_left_out": rate.left_out for name, rate in self.pass_rates().items() if rate.left_out
        }
        total = math.fsum(self.seconds)
        counts: Mapping[str, Mapping[str, Any]] = {
            "time_share": {span: round(seconds / total, 4) for span, seconds in self.spans.items() if total > 0},
            "stop_reason": tally.stop_reasons,
            "model_failure": self.model_failures,
            "failure": tally.failures,
            "retried": tally.retried,
            "charged": tally.charged,
            "items_left_out": self.left_out + Counter({UNSCORED: self._unscored_items()}),
        }
        for kind, by_name in counts.items():
            metrics |= {f"eval/{kind}/{name}": value for name, value in sorted(by_name.items())}
        return metrics

    def details(self) -> dict[str, Any]:
        """The rest of the report: methods, limits, failure examples, and the scores of each item."""
        intervals = self.intervals()
        return {
            "samples_per_item": self.samples,
            "pass_score": self.pass_score,
            "confidence": next((interval.level for interval in intervals.values()), None),
            "methods": {name: interval.method for name, interval in intervals.items()},
            "limit": self.tally.limit,
            "diagnosis": self.tally.diagnosis,
            "resumed_items": self.resumed,
            "failure_examples": dict(sorted(self.tally.examples.items())),
            "items": [
                {"item_id": item, "scores": self.scores[item], "unscored": self.unscored[item]}
                for item in self.items
                if item in self.scores
            ],
        }

    def _unscored_items(self) -> int:
        return sum(not scores for scores in self.scores.values())


def sample_counts(samples: int) -> list[int]:
    """The powers of two up to `samples`, and `samples` itself."""
    powers = [1 << power for power in range(samples.bit_length())]
    return powers if powers[-1] == samples else [*powers, samples]


def time_by_span(rollout: Rollout) -> dict[str, float]:
    """Seconds of a rollout by span; everything after the verifier starts counts as the verifier's."""
    verified_at = min((timing.start for timing in rollout.timings if timing.span == Span.VERIFIER), default=math.inf)
    spans: dict[str, float] = {}
    for timing in rollout.timings:
        if timing.span == Span.VERIFIER or timing.start < verified_at:
            spans[timing.span.value] = spans.get(timing.span.value, 0.0) + timing.seconds
    return spans


def _duration_stats(seconds: Iterable[float]) -> dict[str, float | None]:
    ordered = sorted(seconds)
    if not ordered:
        return {"mean": None, "median": None, "p95": None}
    return {
        "mean": round(statistics.fmean(ordered), 3),
        "median": round(statistics.median(ordered), 3),
        "p95": round(ordered[math.ceil(0.95 * len(ordered)) - 1], 3),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

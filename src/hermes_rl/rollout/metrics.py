"""Counts over rollouts: scores, stop reasons, failures by cause, tokens and time.

A rollout without a score never enters a mean; it is counted by its failure source.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.rollout.budget import Budget


@dataclass
class RolloutCounts:
    groups: int = 0
    rollouts: int = 0
    scores: list[float] = field(default_factory=list)
    score_sum: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    stop_reasons: Counter[str] = field(default_factory=Counter)
    tool_calls: int = 0
    tool_errors: int = 0
    components: dict[str, list[float]] = field(default_factory=dict)
    withheld_groups: Counter[str] = field(default_factory=Counter)
    withheld_rollouts: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    charged: Counter[str] = field(default_factory=Counter)
    """Failures that the policy can have caused, in rollouts that are scored."""
    sequences: int = 0
    sampled_tokens: int = 0
    breaches: Counter[str] = field(default_factory=Counter)
    budget: Budget = field(default_factory=Budget)
    limit: str | None = None
    """The limit that ended the run early."""
    pass_score: float = 1.0

    def add(self, group: Group) -> None:
        self.groups += 1
        if group.withheld is not None:
            self.withheld_groups[group.withheld] += 1
        self.add_rollouts(group.rollouts)

    def add_rollouts(self, rollouts: Iterable[Rollout]) -> None:
        for rollout in rollouts:
            self.rollouts += 1
            self.tool_calls += len(rollout.tool_uses)
            self.tool_errors += sum(use.error is not None for use in rollout.tool_uses)
            self.budget.add([rollout])
            self.retried.update(rollout.metadata.get("earlier_failures", ()))
            charged: Mapping[str, str] = rollout.metadata.get("charged", {}) if rollout.scored else {}
            self.charged.update(charged.keys())
            self.examples.update({cause: text for cause, text in charged.items() if cause not in self.examples})
            self.sequences += len(rollout.sequences)
            self.sampled_tokens += sum(sum(sequence.mask) for sequence in rollout.sequences)
            self.breaches.update(breach["cause"] for breach in rollout.metadata.get("breaches", ()))
            if rollout.withheld is not None:
                self.withheld_rollouts[rollout.withheld] += 1
            for name, value in rollout.components.items():
                self.components.setdefault(name, []).append(value)
            if rollout.failure is not None:
                cause = str(rollout.failure)
                self.failures[cause] += 1
                self.examples.setdefault(cause, rollout.failure.message)
            elif rollout.score is not None:
                self.scores.append(rollout.score)
                self.score_sum += rollout.score
                self.stop_reasons[str(rollout.stop_reason)] += 1

    @property
    def mean(self) -> float | None:
        return self.score_sum / len(self.scores) if self.scores else None

    @property
    def percent_correct(self) -> float | None:
        """Share of scored rollouts that passed, from 0 to 1: Atropos uses this name for a fraction."""
        return sum(score >= self.pass_score for score in self.scores) / len(self.scores) if self.scores else None

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean over independent rollouts; None with fewer than two scores or on overflow."""
        try:
            return statistics.stdev(self.scores) / len(self.scores) ** 0.5 if len(self.scores) > 1 else None
        except OverflowError:
            return None

    def summary(self) -> dict[str, Any]:
        """The counts as a JSON object."""
        return {
            "groups": self.groups,
            "rollouts": self.rollouts,
            "scored": len(self.scores),
            "mean_score": self.mean,
            "standard_error": self.standard_error,
            "percent_correct": self.percent_correct,
            "stop_reasons": dict(self.stop_reasons),
            "failures": dict(self.failures),
            "failure_examples": self.examples,
            "tool_calls": self.tool_calls,
            "tool_errors": self.tool_errors,
            "components": {name: statistics.fmean(values) for name, values in self.components.items()},
            "withheld_groups": dict(self.withheld_groups),
            "withheld_rollouts": dict(self.withheld_rollouts),
            "retried": dict(self.retried),
            "charged": dict(self.charged),
            "prompt_tokens": self.budget.prompt_tokens,
            "completion_tokens": self.budget.completion_tokens,
            "sequences": self.sequences,
            "sampled_tokens": self.sampled_tokens,
            "token_breaches": dict(self.breaches),
            "spent": self.budget.spent,
            "limit": self.limit,
        }

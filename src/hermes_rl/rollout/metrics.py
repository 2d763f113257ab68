"""Counts over rollouts: scores, stop reasons, failures by cause, tokens and time.

A rollout without a score never enters a mean; it is counted by its failure source.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core.group_means import GroupMeans
from hermes_rl.core.tolerance import passes
from hermes_rl.core.trajectory import NOT_BRANCHED, Group, Rollout, StopReason
from hermes_rl.rollout.budget import Budget
from hermes_rl.rollout.diagnosis import OfferedTools
from hermes_rl.rollout.drift import DriftSignals

USER_COUNTS = ("replies", "prompt_tokens", "completion_tokens")


@dataclass
class RolloutCounts:
    groups: int = 0
    rollouts: int = 0
    scores: list[float] = field(default_factory=list)
    group_means: GroupMeans = field(default_factory=GroupMeans)
    seats: dict[str, list[float]] = field(default_factory=dict)
    """The scores of each seat, in environments with several agents."""
    audit_gaps: list[list[float]] = field(default_factory=list)
    """Trained minus audited reward of the audited rollouts of each group."""
    audit_errors: Counter[str] = field(default_factory=Counter)
    drift: DriftSignals = field(default_factory=DriftSignals)
    failures: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    stop_reasons: Counter[str] = field(default_factory=Counter)
    tool_calls: int = 0
    tool_errors: int = 0
    components: dict[str, list[float]] = field(default_factory=dict)
    branches: int = 0
    not_branched: Counter[str] = field(default_factory=Counter)
    """Why independent rollouts are in the place of branches, in tree groups."""
    withheld_groups: Counter[str] = field(default_factory=Counter)
    withheld_rollouts: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    charged: Counter[str] = field(default_factory=Counter)
    """Failures that the policy can have caused, in rollouts that are scored."""
    user_ended: Counter[str] = field(default_factory=Counter)
    """Why simulated users ended their conversations."""
    user_counts: Counter[str] = field(default_factory=Counter)
    """Their replies and tokens."""
    sequences: int = 0
    sampled_tokens: int = 0
    breaches: Counter[str] = field(default_factory=Counter)
    budget: Budget = field(default_factory=Budget)
    limit: str | None = None
    """The limit that ended the run early."""
    dropped: int = 0
    """Groups in flight that were cancelled for exceeding the limit."""
    pass_score: float = 1.0
    offered_tools: OfferedTools = field(default_factory=OfferedTools)

    def add(self, group: Group) -> None:
        self.groups += 1
        self.group_means.add(group.scores)
        if group.withheld is not None:
            self.withheld_groups[group.withheld] += 1
        self.add_rollouts(group.rollouts)
        self.drift.add(group)
        gaps = [rollout.audit_gap for rollout in group.rollouts]
        if known := [gap for gap in gaps if gap is not None]:
            self.audit_gaps.append(known)
        if not self.tool_calls:
            self.offered_tools.add(group)

    def add_rollouts(self, rollouts: Iterable[Rollout]) -> None:
        for rollout in rollouts:
            self.rollouts += 1
            self.tool_calls += len(rollout.tool_uses)
            self.tool_errors += sum(use.error is not None for use in rollout.tool_uses)
            self.budget.add([rollout])
            self.retried.update(rollout.metadata.get("earlier_failures", ()))
            charged: Mapping[str, str] = rollout.metadata.get("charged", {}) if rollout.scored else {}
            self.charged.update(charged.keys())
            self.branches += rollout.branch is not None
            if reason := rollout.metadata.get(NOT_BRANCHED):
                self.not_branched[reason["reason"]] += 1
                if "failure" in reason:
                    self.examples.setdefault(reason["failure"], reason["message"])
            if user := rollout.metadata.get("user"):
                self.user_ended[user.get("ended", "by the agent")] += 1
                self.user_counts.update({name: user.get(name, 0) for name in USER_COUNTS})
            self.examples.update({cause: text for cause, text in charged.items() if cause not in self.examples})
            self.sequences += len(rollout.sequences)
            self.sampled_tokens += sum(sum(sequence.mask) for sequence in rollout.sequences)
            self.breaches.update(breach["cause"] for breach in rollout.metadata.get("breaches", ()))
            if rollout.audit is not None and rollout.audit.error is not None:
                self.audit_errors[rollout.audit.error] += 1
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
                if rollout.seat is not None:
                    self.seats.setdefault(rollout.seat, []).append(rollout.score)
                self.stop_reasons[str(rollout.stop_reason)] += 1

    @property
    def mean(self) -> float | None:
        """Over groups, so that one with failed rollouts counts as much as any other."""
        return self.group_means.mean

    @property
    def seat_means(self) -> dict[str, float]:
        """The mean score of each seat: that of all seats of a game is often a constant."""
        return {seat: statistics.fmean(scores) for seat, scores in sorted(self.seats.items())}

    @property
    def percent_correct(self) -> float | None:
        """Share of scored rollouts that passed, from 0 to 1: Atropos uses this name for a fraction."""
        passed = sum(passes(score, self.pass_score) for score in self.scores)
        return passed / len(self.scores) if self.scores else None

    @property
    def standard_error(self) -> float | None:
        return self.group_means.standard_error

    @property
    def diagnosis(self) -> str | None:
        """Why no rollout called a tool, with the next step; None if one did, none could, or one passed without."""
        if self.tool_calls or self.percent_correct:
            return None
        return self.offered_tools.diagnose(unparsed=self.stop_reasons[str(StopReason.UNPARSED_TOOL_CALL)])

    def summary(self) -> dict[str, Any]:
        """The counts as a JSON object."""
        return {
            "groups": self.groups,
            "rollouts": self.rollouts,
            "scored": len(self.scores),
            "mean_score": self.mean,
            "standard_error": self.standard_error,
            "percent_correct": self.percent_correct,
            **({"seats": self.seat_means} if self.seats else {}),
            **({"branches": self.branches} if self.branches else {}),
            **({"not_branched": dict(self.not_branched)} if self.not_branched else {}),
            "stop_reasons": dict(self.stop_reasons),
            "failures": dict(self.failures),
            "failure_examples": self.examples,
            "tool_calls": self.tool_calls,
            "tool_errors": self.tool_errors,
            "components": {name: statistics.fmean(values) for name, values in self.components.items()},
            **self._audits(),
            **self.drift.summary(),
            "withheld_groups": dict(self.withheld_groups),
            "withheld_rollouts": dict(self.withheld_rollouts),
            "retried": dict(self.retried),
            "charged": dict(self.charged),
            "prompt_tokens": self.budget.prompt_tokens,
            "completion_tokens": self.budget.completion_tokens,
            **({"user_ended": dict(self.user_ended), **_named(self.user_counts)} if self.user_ended else {}),
            "sequences": self.sequences,
            "sampled_tokens": self.sampled_tokens,
            "token_breaches": dict(self.breaches),
            "spent": self.budget.spent,
            "limit": self.limit,
            "dropped": self.dropped,
            "diagnosis": self.diagnosis,
        }

    def _audits(self) -> dict[str, Any]:
        """Absent where nothing was audited."""
        gaps = [gap for group in self.audit_gaps for gap in group]
        failed = sum(self.audit_errors.values())
        if not gaps and not failed:
            return {}
        return {"audited": len(gaps), "audit_errors": failed, **({"audit_gap": sum(gaps) / len(gaps)} if gaps else {})}


def _named(counts: Counter[str]) -> dict[str, int]:
    return {f"user_{name}": count for name, count in counts.items()}

"""The report of a validation: rollouts of scripted agents, and findings with how to fix them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hermes_rl.core.trajectory import Rollout
from hermes_rl.rewards.missing_program import MissingProgram


class Severity(StrEnum):
    """An error makes the environment unfit for training; a warning needs attention; a note is informational."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class AgentKind(StrEnum):
    """The script of an agent: nothing, the author's solution, our cheats, or the author's cheats."""

    NULL = "null"
    ORACLE = "oracle"
    CHEAT = "cheat"
    OWN_CHEAT = "own_cheat"


@dataclass(frozen=True, slots=True)
class ValidationFinding:
    """`code` is a short stable name; `seen` describes what was found, `fix` what to do."""

    severity: Severity
    code: str
    seen: str
    fix: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.seen}\n    → {self.fix}"


@dataclass(frozen=True, slots=True)
class ScriptedRollout:
    """One rollout of a scripted agent.

    `again` is the score of a second reward call, or its error; `missing` are commands of the reward that did not run.
    """

    agent: str
    kind: AgentKind
    item_id: str
    turns: int
    rollout: Rollout
    again: float | str | None = None
    missing: Sequence[MissingProgram] = ()

    @property
    def score(self) -> float | None:
        return self.rollout.score


@dataclass(frozen=True, slots=True)
class ValidationReport:
    environment: str
    pass_score: float
    items: Mapping[str, int] = field(default_factory=dict)
    trials: Sequence[ScriptedRollout] = ()
    findings: Sequence[ValidationFinding] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    search: str = ""
    """How much of the sandboxes was searched for answers; empty if they were not searched."""

    @property
    def ok(self) -> bool:
        return not self.findings_with(Severity.ERROR)

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings}

    def findings_with(self, severity: Severity) -> list[ValidationFinding]:
        return [finding for finding in self.findings if finding.severity is severity]

    def scores(self, agent: str) -> list[float | None]:
        """The scores of an agent; None for unscored rollouts."""
        return [trial.score for trial in self.trials if trial.agent == agent]

    def agents(self) -> dict[str, AgentKind]:
        """Null first, then the oracle, then the cheats."""
        order = list(AgentKind)
        trials = sorted(self.trials, key=lambda trial: order.index(trial.kind))
        return {trial.agent: trial.kind for trial in trials}

    def as_dict(self) -> dict[str, Any]:
        return {
            "environment": self.environment,
            "ok": self.ok,
            "pass_score": self.pass_score,
            "items": dict(self.items),
            "agents": [
                {"name": name, "kind": kind, "mean": mean_score(scores), "scores": scores}
                for name, kind in self.agents().items()
                for scores in [self.scores(name)]
            ],
            "findings": [
                {"severity": finding.severity, "code": finding.code, "seen": finding.seen, "mend": finding.fix}
                for finding in self.findings
            ],
            "seconds": dict(self.seconds),
            "search": self.search,
        }

    def __str__(self) -> str:
        return "\n".join([f"{self.environment}: {self.verdict}", *map(str, self.findings)])

    @property
    def verdict(self) -> str:
        counts = [(len(self.findings_with(severity)), severity) for severity in Severity]
        found = ", ".join(f"{count} {severity}{'s' * (count > 1)}" for count, severity in counts if count)
        return found or "no problems found"


def mean_score(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) if known else None


def shorten(value: object, limit: int = 120) -> str:
    """A value as one short line."""
    line = " ".join(str(value).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def join_names(names: Sequence[str], limit: int = 5) -> str:
    """The first few names and the number of the rest."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more

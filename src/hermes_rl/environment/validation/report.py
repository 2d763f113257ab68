"""What a validation saw: the rollouts of scripted agents, and findings that say what is wrong and how to mend it."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hermes_rl.trajectory import Rollout


class Severity(StrEnum):
    """An error makes the environment unfit for training; a warning wants a look; a note is for your information."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Kind(StrEnum):
    """Whose script an agent plays: nobody's, the author's solution, our cheats, the author's own cheats."""

    NULL = "null"
    ORACLE = "oracle"
    CHEAT = "cheat"
    OWN_CHEAT = "own_cheat"


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is a short stable word; `seen` has the values, `mend` what to do."""

    severity: Severity
    code: str
    seen: str
    mend: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.seen}\n    → {self.mend}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One rollout of a scripted agent. `again` is the score when its reward was asked a second time, or why not.

    `raised_at` is the line of the author's where the reward raised.
    """

    agent: str
    kind: Kind
    item_id: str
    turns: int
    rollout: Rollout
    again: float | str | None = None
    raised_at: str = ""

    @property
    def score(self) -> float | None:
        return self.rollout.score


@dataclass(frozen=True, slots=True)
class Report:
    environment: str
    pass_score: float
    items: Mapping[str, int] = field(default_factory=dict)
    trials: Sequence[Trial] = ()
    findings: Sequence[Finding] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.of(Severity.ERROR)

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings}

    def of(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is severity]

    def scores(self, agent: str) -> list[float | None]:
        """The scores of an agent by its name, None where there is none."""
        return [trial.score for trial in self.trials if trial.agent == agent]

    def agents(self) -> dict[str, Kind]:
        """Null first, then the oracle, then the cheats."""
        order = list(Kind)
        trials = sorted(self.trials, key=lambda trial: order.index(trial.kind))
        return {trial.agent: trial.kind for trial in trials}

    def as_dict(self) -> dict[str, Any]:
        return {
            "environment": self.environment,
            "ok": self.ok,
            "pass_score": self.pass_score,
            "items": dict(self.items),
            "agents": [
                {"name": name, "kind": kind, "mean": mean_of(scores), "scores": scores}
                for name, kind in self.agents().items()
                for scores in [self.scores(name)]
            ],
            "findings": [
                {"severity": one.severity, "code": one.code, "seen": one.seen, "mend": one.mend}
                for one in self.findings
            ],
            "seconds": dict(self.seconds),
        }

    def __str__(self) -> str:
        return "\n".join([f"{self.environment}: {self.verdict}", *map(str, self.findings)])

    @property
    def verdict(self) -> str:
        counts = [(len(self.of(severity)), severity) for severity in Severity]
        found = ", ".join(f"{count} {severity}{'s' * (count > 1)}" for count, severity in counts if count)
        return found or "nothing found"


def mean_of(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) if known else None


def shown(value: object, limit: int = 120) -> str:
    """A value on one line of a message."""
    line = " ".join(str(value).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def listed(names: Sequence[str], limit: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more

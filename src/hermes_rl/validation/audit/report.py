"""The result of an audit: one record a task with its certificate, and the verdict on the dataset."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.validation.audit.checks import CHECKS, CheckResult, Outcome
from hermes_rl.validation.audit.evidence import TaskEvidence
from hermes_rl.version import __version__


class Status(StrEnum):
    """A task with a defect has an untrustworthy reward; one that could not be audited may have one."""

    SOUND = "sound"
    DEFECT = "defect"
    CANNOT = "cannot"


EXIT_CODES = {Status.SOUND: 0, Status.DEFECT: 1, Status.CANNOT: 2}
COLOURS = {Status.SOUND: "#2e7d32", Status.DEFECT: "#c62828", Status.CANNOT: "#8a6d00"}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """`records` are those of `task_record`, in the order of the dataset."""

    environment: str
    dataset: str
    records: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()
    seconds: float = 0.0
    resumed: int = 0
    version: str = field(default=__version__)

    @property
    def counts(self) -> dict[Status, int]:
        found = Counter(record["status"] for record in self.records)
        return {status: found[status] for status in Status}

    @property
    def status(self) -> Status:
        """Defects outweigh tasks that could not be audited."""
        if self.counts[Status.DEFECT]:
            return Status.DEFECT
        return Status.CANNOT if self.counts[Status.CANNOT] or not self.records else Status.SOUND

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @property
    def verdict(self) -> str:
        """One line: 198 of 200 tasks sound."""
        others = [f"{self.counts[Status.DEFECT]} with defects", f"{self.counts[Status.CANNOT]} not audited"]
        shown = [text for text in others if not text.startswith("0 ")]
        return ", ".join([f"{self.counts[Status.SOUND]} of {len(self.records)} tasks sound", *shown])

    def by_check(self) -> dict[str, Counter[str]]:
        """The number of tasks for each outcome of each check."""
        found: dict[str, Counter[str]] = {check.name: Counter() for check in CHECKS}
        for record in self.records:
            for result in record["checks"]:
                found[result["check"]][result["outcome"]] += 1
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "environment": self.environment,
            "dataset": self.dataset,
            "hermes_rl": self.version,
            "status": self.status,
            "counts": dict(self.counts),
            "checks": {name: dict(counts) for name, counts in self.by_check().items()},
            "notes": list(self.notes),
            "seconds": round(self.seconds, 1),
            "resumed": self.resumed,
            "tasks": list(self.records),
        }


def task_record(
    key: str, environment: str, digest: str, task: TaskEvidence, results: Sequence[CheckResult], seconds: float
) -> dict[str, Any]:
    """The line of a task in the ledger."""
    status = status_of(task, results)
    return {
        "key": key,
        "task": task.task,
        "split": task.split,
        "status": status,
        "why": task.refused or task.machine_fault,
        "again": bool(task.machine_fault),
        "checks": [{"check": one.check, "outcome": one.outcome, "seen": list(one.seen)} for one in results],
        "agents": [
            {
                "agent": agent.agent,
                "kind": agent.kind,
                "scores": list(agent.scores),
                "elsewhere": list(agent.elsewhere),
                "failure": str(agent.failure) if agent.failure else None,
            }
            for agent in task.agents
        ],
        "seconds": round(seconds, 2),
        "certificate": certificate(environment, digest, task.task, status, results),
    }


def status_of(task: TaskEvidence, results: Sequence[CheckResult]) -> Status:
    if any(result.outcome is Outcome.DEFECT for result in results):
        return Status.DEFECT
    return Status.CANNOT if task.refused or task.machine_fault else Status.SOUND


def certificate(
    environment: str, digest: str, task: str, status: Status, results: Sequence[CheckResult]
) -> dict[str, Any]:
    """What was proved of which content by which version. Equal audits give equal certificates."""
    content = {
        "environment": environment,
        "task": task,
        "sha256": digest,
        "hermes_rl": __version__,
        "status": status,
        "passed": [result.check for result in results if result.outcome is Outcome.PASSED],
        "failed": [result.check for result in results if result.outcome in {Outcome.DEFECT, Outcome.WARNING}],
    }
    return {"id": hashlib.sha256(fast_json.dumps(content)).hexdigest()[:16], **content}

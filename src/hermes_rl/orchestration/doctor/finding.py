"""Findings of the doctor's checks, each with a command to fix it if something is wrong."""

from dataclasses import dataclass
from enum import StrEnum


class FindingState(StrEnum):
    OK = "ok"
    ABSENT = "absent"
    """Optional: needed only for the purpose in the finding."""
    WARN = "warn"
    """Usable, but something went wrong or will."""
    MISSING = "missing"
    """Required by every run."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    check: str
    state: FindingState
    what: str
    fix: str | None = None
    """The command that fixes it, in one line."""


def healthy(findings: list[DoctorFinding]) -> bool:
    return all(finding.state is not FindingState.MISSING for finding in findings)

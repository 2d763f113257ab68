"""What an examination finds: one statement each, and where something is wrong the line that mends it."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    ABSENT = "absent"
    """Not there, and nothing is wrong with that: only what the finding names would need it."""
    WARN = "warn"
    """Works today; something will go wrong or already went wrong."""
    MISSING = "missing"
    """Needed by every run, and not there."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: State
    what: str
    mend: str | None = None
    """One line to type."""


def healthy(findings: list[Finding]) -> bool:
    """Whether nothing that is needed is missing."""
    return all(finding.state is not State.MISSING for finding in findings)

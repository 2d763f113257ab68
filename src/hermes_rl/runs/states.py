"""What is said of a run and its parts: the words, and the document in which a supervisor says them.

Always true: the document is whole at every moment, and can be written on a full disk; a process counts as the one it
names only when it began at the moment it names.
"""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hermes_rl.processes import Identity
from hermes_rl.runs.steady import read_steadily, write_steadily


class Phase(StrEnum):
    """Where a run is. The last three are ends; `resume` begins again from each but FINISHED."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    """Somebody stopped it."""
    FINISHED = "finished"
    """It took its last step, and its weights are there."""
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in {Phase.STOPPED, Phase.FINISHED, Phase.FAILED}


class PartState(StrEnum):
    WAITING = "waiting"
    """For those before it, or for the end of its pause before it is started again."""
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class PartStanding:
    state: PartState = PartState.WAITING
    keeper: Identity | None = None
    process: Identity | None = None
    url: str | None = None
    restarts: int = 0
    exit_code: int | None = None
    """Of its last life; below zero for the signal that ended it."""
    problem: str | None = None
    """Why it ended or cannot start, in words."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What a supervisor last said. `changed_at` is of the phase, `said_at` of the document, both in Unix seconds."""

    run_id: str
    phase: Phase
    supervisor: Identity | None
    parts: dict[str, PartStanding] = field(default_factory=dict)
    """In the order in which they start."""
    reason: str | None = None
    """Why it is in this phase, in words."""
    started_at: float = 0.0
    changed_at: float = 0.0
    said_at: float = 0.0
    ran_before: float = 0.0
    """Seconds that it ran in its lives before `started_at`: the time in which it was stopped is not running time."""
    ending: Phase | None = None
    """Where a stopping run is going."""
    complete: bool = False
    """Whether the trainer took its last step."""
    attempt: int = 1
    """How often it was started; each `resume` counts."""

    def write(self, path: Path) -> None:
        write_steadily(path, asdict(self))


def read_state(path: Path) -> RunState | None:
    """None when no supervisor has said anything yet."""
    told = read_steadily(path)
    if told is None:
        return None
    ending = told.get("ending")
    parts = {name: _part(standing) for name, standing in told.pop("parts").items()}
    known = {"phase": Phase(told["phase"]), "supervisor": _identity(told["supervisor"]), "parts": parts}
    return RunState(**{**told, **known, "ending": ending and Phase(ending)})


def _part(told: dict[str, Any]) -> PartStanding:
    identities = {name: _identity(told[name]) for name in ("keeper", "process")}
    return PartStanding(**{**told, **identities, "state": PartState(told["state"])})


def _identity(told: dict[str, Any] | None) -> Identity | None:
    return None if told is None else Identity(**told)

"""The state of a run and its parts, and the state file that its supervisor writes.

Always true: the file is complete at every moment and can be written on a full disk. A process is identified by its pid
and its start time.
"""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import read_atomic_json, write_atomic_json
from hermes_rl.orchestration.reconciler.unit import UnitState


class Phase(StrEnum):
    """The phase of a run. The last three are final; `resume` continues from any of them except FINISHED."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    """Stopped by a user."""
    FINISHED = "finished"
    """It took its last step, and its weights were exported."""
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in {Phase.STOPPED, Phase.FINISHED, Phase.FAILED}


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    state: UnitState = UnitState.WAITING
    keeper: ProcessIdentity | None = None
    process: ProcessIdentity | None = None
    url: str | None = None
    restarts: int = 0
    exit_code: int | None = None
    """Of its last process; negative for the signal that ended it."""
    problem: str | None = None
    """Why it ended or cannot start."""


@dataclass(frozen=True, slots=True)
class RunState:
    """Times are in Unix seconds: `changed_at` of the phase, `said_at` of the last write."""

    run_id: str
    phase: Phase
    supervisor: ProcessIdentity | None
    parts: dict[str, ComponentStatus] = field(default_factory=dict)
    """In start order."""
    reason: str | None = None
    """Why it is in this phase."""
    started_at: float = 0.0
    changed_at: float = 0.0
    said_at: float = 0.0
    ran_before: float = 0.0
    """Seconds that earlier attempts ran before `started_at`, without the time in which the run was stopped."""
    ending: Phase | None = None
    """The final phase of a stopping run."""
    complete: bool = False
    """Whether the trainer took its last step."""
    attempt: int = 1
    """Number of starts, including each `resume`."""

    def write(self, path: Path) -> None:
        write_atomic_json(path, asdict(self))


def read_state(path: Path) -> RunState | None:
    """None when no supervisor has written it yet."""
    document = read_atomic_json(path)
    if document is None:
        return None
    ending = document.get("ending")
    parts = {name: _part(status) for name, status in document.pop("parts").items()}
    typed = {"phase": Phase(document["phase"]), "supervisor": _identity(document["supervisor"]), "parts": parts}
    return RunState(**{**document, **typed, "ending": ending and Phase(ending)})


def _part(status: dict[str, Any]) -> ComponentStatus:
    identities = {name: _identity(status[name]) for name in ("keeper", "process")}
    return ComponentStatus(**{**status, **identities, "state": UnitState(status["state"])})


def _identity(identity: dict[str, Any] | None) -> ProcessIdentity | None:
    return None if identity is None else ProcessIdentity(**identity)

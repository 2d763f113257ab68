"""The actual status of a run, derived from its saved state, its desired state and its live processes.

Always true: pure functions; only a live process counts as running, and what never started is not reported as ended.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from hermes_rl.orchestration.reconciler.unit import UnitState, signal_name
from hermes_rl.orchestration.run_state import ComponentStatus, RunState

# A supervisor touches its lock five times a second; after this long without, it is stuck.
SILENCE_LIMIT = 4.0
# How long a requested supervisor may take to appear on a busy machine.
START_GRACE = 20.0
NOT_STARTED = "not started"


class LivePhase(StrEnum):
    """The supervisor's phases, plus two that only others can see when the supervisor is gone."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    RECOVERING = "recovering"
    """The supervisor died and the components go on; a shim starts a new supervisor."""
    INTERRUPTED = "interrupted"
    """The run had not ended and has no process left, as after a reboot."""

    @property
    def ended(self) -> bool:
        """Nothing of it is running or will start by itself."""
        return self in {LivePhase.STOPPED, LivePhase.FINISHED, LivePhase.FAILED, LivePhase.INTERRUPTED}


@dataclass(frozen=True, slots=True)
class ComponentFacts:
    """One component: `shim` and `process` are alive; `exit_code` of the last launch; `started`: it ever ran."""

    shim: bool = False
    process: bool = False
    exit_code: int | None = None
    started: bool = False


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """What is known about a run at `now`, in Unix seconds."""

    run_id: str
    now: float
    state: RunState | None = None
    unreadable: str | None = None
    """Why its state cannot be read."""
    supervisor: bool = False
    parts: dict[str, ComponentFacts] = field(default_factory=dict)
    supervisor_seen_at: float = 0.0
    """The supervisor's last heartbeat: its last state, or the mtime of its lock."""
    stop_wanted: bool = False
    requested_at: float = 0.0
    """When the desired state was last written; for a run without any state, when it was created."""
    requester_alive: bool = False
    """The process that wrote the desired state is alive and may be starting a supervisor."""
    supervisor_starting: bool = False
    """A newly started supervisor is alive."""

    @property
    def live_shims(self) -> list[str]:
        return [name for name, part in self.parts.items() if part.shim]

    @property
    def start_pending(self) -> bool:
        """Whether a start was requested and the supervisor has not written a state since."""
        written_at = self.state.said_at if self.state else 0.0
        requesting = self.requester_alive and 0 <= self.now - self.requested_at < START_GRACE
        return not self.stop_wanted and self.requested_at > written_at and (self.supervisor_starting or requesting)


@dataclass(frozen=True, slots=True)
class DerivedStatus:
    phase: LivePhase
    reason: str | None = None
    """Why, with the next command where there is one."""
    silent: float | None = None
    """Seconds since the last heartbeat of a live supervisor, if that is too long."""
    running_seconds: float = 0.0


def derive_status(facts: StatusFacts) -> DerivedStatus:
    phase, reason = _derive_phase(facts)
    silent = _silence(facts)
    if silent is not None:
        warning = f"its supervisor is alive but silent for {silent:.0f} s, so this status may be outdated"
        reason = f"{warning}; {reason}" if reason else warning
    return DerivedStatus(phase, reason, silent, running_seconds(facts))


def live_phase(facts: StatusFacts) -> LivePhase:
    return _derive_phase(facts)[0]


def part_status(part: ComponentStatus, facts: ComponentFacts) -> str:
    """waiting, starting, running, stopping, `exited (CODE)`, `killed by SIGNAL`, or `not started`."""
    if part.state is UnitState.WAITING:
        return "waiting"
    if part.state is UnitState.EXITED:
        code = facts.exit_code if part.exit_code is None else part.exit_code
        return NOT_STARTED if code is None and not facts.started else describe_exit(code)
    if facts.process:
        return {UnitState.STARTING: "starting", UnitState.READY: "running"}.get(part.state, "stopping")
    if part.state is UnitState.STARTING and part.process is None and facts.exit_code is None:
        return "starting" if facts.shim else "waiting"
    return describe_exit(facts.exit_code)


def describe_exit(exit_code: int | None) -> str:
    if exit_code is None:
        return "exited (code unknown)"
    if exit_code >= 0:
        return f"exited ({exit_code})"
    return f"killed by {signal_name(-exit_code)}"


def running_seconds(facts: StatusFacts) -> float:
    """The running time of all attempts, without the time in between."""
    state = facts.state
    if state is None or not state.started_at:
        return 0.0
    last = facts.now if facts.supervisor or facts.live_shims else facts.supervisor_seen_at
    until = state.changed_at if state.phase.ended else last
    return state.ran_before + max(0.0, until - state.started_at)


def _derive_phase(facts: StatusFacts) -> tuple[LivePhase, str | None]:
    state = facts.state
    if facts.start_pending and not facts.supervisor and (state is None or state.phase.ended or not facts.live_shims):
        return LivePhase.STARTING, "its supervisor is being started"
    if state is None:
        return _without_state(facts)
    if state.phase.ended:
        return LivePhase(state.phase), state.reason
    if not facts.supervisor:
        return _without_supervisor(facts)
    if facts.stop_wanted:
        return LivePhase.STOPPING, state.reason or "a stop was requested"
    return LivePhase(state.phase), state.reason


def _without_state(facts: StatusFacts) -> tuple[LivePhase, str | None]:
    """For a run without a readable state."""
    if facts.unreadable:
        return LivePhase.INTERRUPTED, f"{facts.unreadable}; {_resume_hint(facts)}"
    if facts.stop_wanted:
        return LivePhase.STOPPED, "it was stopped before it started"
    return LivePhase.INTERRUPTED, f"its supervisor never wrote a state; its log may say why. {_resume_hint(facts)}"


def _without_supervisor(facts: StatusFacts) -> tuple[LivePhase, str | None]:
    if facts.live_shims:
        alive = ", ".join(facts.live_shims)
        return LivePhase.RECOVERING, f"its supervisor died; {alive} kept running, and a new supervisor is starting"
    if facts.stop_wanted:
        return LivePhase.STOPPED, f"a stop was requested and all its processes are gone; {_resume_hint(facts)}"
    return (
        LivePhase.INTERRUPTED,
        f"all its processes are gone without a reason; they may have been killed. {_resume_hint(facts)}",
    )


def _resume_hint(facts: StatusFacts) -> str:
    return f"`hermes-rl run resume {facts.run_id}` continues it"


def _silence(facts: StatusFacts) -> float | None:
    state = facts.state
    if state is None or state.phase.ended or not facts.supervisor:
        return None
    silent = facts.now - facts.supervisor_seen_at
    return silent if silent > SILENCE_LIMIT else None

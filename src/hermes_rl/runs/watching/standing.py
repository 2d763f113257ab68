"""What a run really is now, decided from facts: what was said of it, what is wanted of it, and which processes live.

Always true: pure; nothing counts as running that does not live, and nothing that never began is said to have ended.
"""

import signal
from dataclasses import dataclass, field
from enum import StrEnum

from hermes_rl.runs.states import PartStanding, PartState, RunState

# A supervisor speaks five times a second; one that is silent for so long does nothing.
SILENT = 4.0
# How long a supervisor that was just asked for may take to be there, on a machine with much to do.
BEGINNING = 20.0
NEVER = "not started"


class LivePhase(StrEnum):
    """Where a run is. Besides what a supervisor says of it: what only others can see when it is gone."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    RECOVERING = "recovering"
    """Its supervisor died and its processes go on; one of their keepers starts a new supervisor."""
    INTERRUPTED = "interrupted"
    """It had not ended, and none of its processes is there, as after a restart of the machine."""

    @property
    def ended(self) -> bool:
        """Nothing of it runs or will by itself."""
        return self in {LivePhase.STOPPED, LivePhase.FINISHED, LivePhase.FAILED, LivePhase.INTERRUPTED}


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What lives of one part. `exit_code` is its keeper's note of the last life's end; `begun`: it was ever started."""

    keeper: bool = False
    process: bool = False
    exit_code: int | None = None
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found out about a run at the moment `now`, in Unix seconds."""

    run_id: str
    now: float
    state: RunState | None = None
    unreadable: str | None = None
    """Why what was said of it cannot be read."""
    supervisor: bool = False
    parts: dict[str, PartFacts] = field(default_factory=dict)
    spoke_at: float = 0.0
    """When a supervisor last gave a sign of life: by what it said, or by the time of its lock."""
    stop_wanted: bool = False
    wanted_at: float = 0.0
    """When it was last said what is wanted of it; of a run without a word of a supervisor, when it was made."""
    asker: bool = False
    """Whoever said that lives, and may be about to start a supervisor."""
    coming: bool = False
    """A supervisor that was started lives."""

    @property
    def keepers(self) -> list[str]:
        return [name for name, part in self.parts.items() if part.keeper]

    @property
    def just_asked(self) -> bool:
        """Whether somebody wants it to run, and a supervisor has yet to say so."""
        said = self.state.said_at if self.state else 0.0
        asking = self.asker and 0 <= self.now - self.wanted_at < BEGINNING
        return not self.stop_wanted and self.wanted_at > said and (self.coming or asking)


@dataclass(frozen=True, slots=True)
class Standing:
    phase: LivePhase
    reason: str | None = None
    """Why it is so, in words, with the next step where there is one."""
    silent: float | None = None
    """Seconds since a living supervisor last spoke, if that is too long."""
    running_seconds: float = 0.0


def standing_of(facts: Facts) -> Standing:
    phase, reason = _phase(facts)
    silent = _silence(facts)
    if silent is not None:
        said = f"its supervisor lives but has not spoken for {silent:.0f} s: what is said of its parts may be older"
        reason = f"{said}; {reason}" if reason else said
    return Standing(phase, reason, silent, running_seconds(facts))


def live_phase(facts: Facts) -> LivePhase:
    return _phase(facts)[0]


def part_status(part: PartStanding, facts: PartFacts) -> str:
    """waiting, starting, running, stopping, `exited (CODE)`, `killed by SIGNAL`, or `not started` when it never was."""
    if part.state is PartState.WAITING:
        return "waiting"
    if part.state is PartState.EXITED:
        code = facts.exit_code if part.exit_code is None else part.exit_code
        return NEVER if code is None and not facts.begun else ended_by(code)
    if facts.process:
        return {PartState.STARTING: "starting", PartState.READY: "running"}.get(part.state, "stopping")
    if part.state is PartState.STARTING and part.process is None and facts.exit_code is None:
        return "starting" if facts.keeper else "waiting"
    return ended_by(facts.exit_code)


def ended_by(exit_code: int | None) -> str:
    if exit_code is None:
        return "exited (code unknown)"
    if exit_code >= 0:
        return f"exited ({exit_code})"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"


def running_seconds(facts: Facts) -> float:
    """How long it ran in all its lives, without the time in which it was stopped or gone."""
    state = facts.state
    if state is None or not state.started_at:
        return 0.0
    last = facts.now if facts.supervisor or facts.keepers else facts.spoke_at
    until = state.changed_at if state.phase.ended else last
    return state.ran_before + max(0.0, until - state.started_at)


def _phase(facts: Facts) -> tuple[LivePhase, str | None]:
    state = facts.state
    if facts.just_asked and not facts.supervisor and (state is None or state.phase.ended or not facts.keepers):
        return LivePhase.STARTING, "its supervisor is being started"
    if state is None:
        return _unsaid(facts)
    if state.phase.ended:
        return LivePhase(state.phase), state.reason
    if not facts.supervisor:
        return _without_supervisor(facts)
    if facts.stop_wanted:
        return LivePhase.STOPPING, state.reason or "somebody stopped it"
    return LivePhase(state.phase), state.reason


def _unsaid(facts: Facts) -> tuple[LivePhase, str | None]:
    """Of a run of which no supervisor has said anything that can be read."""
    if facts.unreadable:
        return LivePhase.INTERRUPTED, f"{facts.unreadable}; {_resume(facts)}"
    if facts.stop_wanted:
        return LivePhase.STOPPED, "it was stopped before anything of it was started"
    return LivePhase.INTERRUPTED, f"its supervisor never said a word; its log may say why. {_resume(facts)}"


def _without_supervisor(facts: Facts) -> tuple[LivePhase, str | None]:
    if facts.keepers:
        alive = ", ".join(facts.keepers)
        return LivePhase.RECOVERING, f"its supervisor died; {alive} went on, and a new supervisor is coming"
    if facts.stop_wanted:
        return LivePhase.STOPPED, f"it was told to stop, and all its processes are gone; {_resume(facts)}"
    return LivePhase.INTERRUPTED, f"all its processes are gone, and none said why: were they killed? {_resume(facts)}"


def _resume(facts: Facts) -> str:
    return f"`hermes-rl run resume {facts.run_id}` goes on with it"


def _silence(facts: Facts) -> float | None:
    state = facts.state
    if state is None or state.phase.ended or not facts.supervisor:
        return None
    silent = facts.now - facts.spoke_at
    return silent if silent > SILENT else None

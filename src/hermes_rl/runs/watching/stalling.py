"""Whether a running run gets nowhere, since when, and which log to look at.

Always true: pure; only a run that says it is running can stall, and it is given the time that its own steps take.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hermes_rl.runs.watching.standing import LivePhase

LEAST = 600.0
# How many times its median a step may take.
PATIENCE = 5.0
# An environment that wrote nothing for this share of the silence is what the trainer waits for.
ALSO_SILENT = 0.5


@dataclass(frozen=True, slots=True)
class Pace:
    """How a run gets on: moments are in Unix seconds, `environments` the states of those that train, by part."""

    phase: LivePhase
    now: float
    running_since: float
    last_step_at: float | None = None
    step_seconds: float | None = None
    heard_at: float = 0.0
    environments: Mapping[str, str] | None = None
    trainer: str = "running"


@dataclass(frozen=True, slots=True)
class Stall:
    kind: str
    since: float
    why: str
    look_at: str
    """The part whose log says more."""


def stall_of(pace: Pace) -> Stall | None:
    if pace.phase is not LivePhase.RUNNING:
        return None
    last = max(pace.running_since, pace.last_step_at or 0.0)
    states = pace.environments or {}
    if states and not any(state in {"running", "starting"} for state in states.values()):
        said = ", ".join(f"{part} {state}" for part, state in states.items())
        return Stall(
            "no_environment",
            last,
            f"no environment runs, so there is nothing to learn from: {said}",
            next(iter(states)),
        )
    silent, patience = pace.now - last, max(LEAST, PATIENCE * (pace.step_seconds or 0.0))
    if silent <= patience:
        return None
    usual = f"; a step takes {pace.step_seconds:.0f} s" if pace.step_seconds else ""
    why = f"no new step for {silent / 60:.0f} minutes{usual}"
    waits = pace.trainer == "running" and pace.now - pace.heard_at > ALSO_SILENT * silent
    return Stall("no_step", last, why, next(iter(states), "trainer") if waits else "trainer")

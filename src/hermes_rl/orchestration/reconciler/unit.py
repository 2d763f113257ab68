"""A unit is a component of a run or a shard of a fleet: its state, its restarts, and why its process ended.

Always true: pure functions; the pause doubles with each failure within the window, and one failure more than
`most_failures` is fatal.
"""

import signal
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar


class UnitState(StrEnum):
    WAITING = "waiting"
    """For units that start before it, for its restart delay, or for a host."""
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    EXITED = "exited"

    @property
    def down(self) -> bool:
        return self in {UnitState.WAITING, UnitState.EXITED}


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """In seconds, except `most_failures`."""

    first_pause: float = 1.0
    longest_pause: float = 30.0
    most_failures: int = 5
    """Tolerated within `window`; one more is fatal."""
    window: float = 900.0
    steady_after: float = 300.0
    """After being ready for this long, a unit's failures are forgotten."""

    def recent(self, failures: tuple[float, ...], now: float) -> tuple[float, ...]:
        return tuple(at for at in failures if now - at < self.window)

    def pause(self, failures: tuple[float, ...]) -> float:
        """Seconds until the next start after these failures."""
        return min(self.longest_pause, self.first_pause * 2.0 ** (len(failures) - 1))


@dataclass(frozen=True, slots=True)
class Unit:
    """`since` is when it entered its state."""

    state: UnitState = UnitState.WAITING
    since: float = 0.0
    not_before: float = 0.0
    failures: tuple[float, ...] = ()
    restarts: int = 0
    done: bool = False
    """It finished its work."""
    fatal: str | None = None
    """Why it will not be restarted."""
    problem: str | None = None


UnitT = TypeVar("UnitT", bound=Unit)


def after_ready(policy: RestartPolicy, unit: UnitT, now: float) -> UnitT:
    if unit.state is UnitState.STARTING:
        return replace(unit, state=UnitState.READY, since=now)
    steady = unit.state is UnitState.READY and now - unit.since >= policy.steady_after
    return replace(unit, failures=(), problem=None) if steady else unit


def after_failure(policy: RestartPolicy, unit: UnitT, now: float, problem: str, weight: int = 1) -> UnitT:
    """The unit once its process has ended by a failure, which counts `weight` times."""
    failures = policy.recent(unit.failures, now) + (now,) * weight
    failed = replace(unit, since=now, failures=failures, problem=problem)
    if len(failures) > policy.most_failures:
        return replace(failed, state=UnitState.EXITED, fatal=f"failed {len(failures)} times; last failure: {problem}")
    pause = policy.pause(failures)
    return replace(failed, state=UnitState.WAITING, not_before=now + pause, restarts=unit.restarts + 1)


def describe_exit(exit_code: int | None, output: str | None, *, unknown: str) -> str:
    """How a process ended, with the end of its output. `unknown` describes an end without an exit code."""
    if exit_code is None:
        how = unknown
    elif exit_code < 0:
        how = f"killed by {signal_name(-exit_code)}"
    else:
        how = f"exited with status {exit_code}"
    return f"{how}: {output}" if output else how


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

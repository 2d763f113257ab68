"""One part's course, decided: what it is after what is seen of it, and what becomes of it when a life of it has ended.

Always true: a failure is borne with twice the pause of the last, up to as many as its patience says; a configuration
that never worked is not tried twice.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hermes_rl.runs.states import PartState
from hermes_rl.runs.supervision.parts import PartPlan, Role

BAD_CONFIGURATION = 2
# A keeper puts its house in order for a second or two when its part has ended.
HANGS_AFTER = 15.0


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What is seen of one part. `exit_code` is that of the life in question, once it has ended and somebody saw it."""

    keeper: bool = False
    process: bool = False
    begun: bool = False
    """Its process was there, whether it is now or not."""
    ready: bool = False
    url: str | None = None
    exit_code: int | None = None
    port_taken: bool = False
    """Somebody else has the port that it was to listen on."""
    problem: str | None = None
    """What its log ends with, or why it could not even be started."""

    @property
    def lives(self) -> bool:
        return self.keeper or self.process


@dataclass(frozen=True, slots=True)
class Part:
    """`since` is when it came into its state. `asked`: a stopping one was told to."""

    state: PartState = PartState.WAITING
    since: float = 0.0
    not_before: float = 0.0
    failures: tuple[float, ...] = ()
    restarts: int = 0
    given: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    was_ready: bool = False
    asked: bool = False
    again: bool = False
    """When it has stopped it is started again, and that is no failure."""
    failing: str | None = None
    """When it has stopped, that was for this failure."""
    headless_since: float | None = None
    """From then on its keeper lived and itself did not."""
    done: bool = False
    """It did what it was for."""
    fatal: str | None = None
    """Why it is not started again."""
    exit_code: int | None = None
    problem: str | None = None

    def hangs(self, now: float) -> bool:
        return self.headless_since is not None and now - self.headless_since > HANGS_AFTER


def begun(part: Part, given: Mapping[str, str], now: float) -> Part:
    return replace(
        part,
        state=PartState.STARTING,
        since=now,
        given=dict(given),
        asked=False,
        again=False,
        failing=None,
        headless_since=None,
    )


def told_to_stop(part: Part, now: float) -> Part:
    return replace(part, state=PartState.STOPPING, since=now, asked=True, again=False, failing=None)


def observed(  # noqa: PLR0911 (a case a line)
    plan: PartPlan, part: Part, seen: PartFacts, now: float, *, clock_runs: bool, fulfilled: bool, wanted: bool
) -> Part:
    """The part after what is seen. `clock_runs`: what it needs is ready, so that it has no excuse not to be.

    `fulfilled`: it has done what it is for. `wanted`: it is to run at all.
    """
    if part.state in {PartState.WAITING, PartState.EXITED}:
        return part
    if not seen.lives:
        return _after_life(plan, part, seen, now, fulfilled=fulfilled, wanted=wanted)
    if part.state is PartState.STOPPING:
        return part
    headless = seen.keeper and seen.begun and not seen.process
    part = replace(part, headless_since=(part.headless_since or now) if headless else None)
    if seen.ready:
        if part.state is PartState.STARTING:
            return replace(part, state=PartState.READY, since=now, was_ready=True, url=seen.url, problem=None)
        steady = now - part.since >= plan.patience.steady_after
        return replace(part, failures=() if steady else part.failures, url=seen.url)
    if part.state is PartState.READY:
        return replace(part, state=PartState.STARTING, since=now)
    if not clock_runs:
        return replace(part, since=now)
    if now - part.since > plan.patience.ready_within:
        failing = f"it was not ready within {plan.patience.ready_within:g} s"
        return replace(part, state=PartState.STOPPING, since=now, asked=False, again=False, failing=failing)
    return part


def _after_life(plan: PartPlan, part: Part, seen: PartFacts, now: float, *, fulfilled: bool, wanted: bool) -> Part:  # noqa: PLR0911 (a case a line)
    problem = part.failing or _how_it_ended(seen)
    ended = replace(part, state=PartState.EXITED, since=now, exit_code=seen.exit_code, headless_since=None)
    if part.state is PartState.STOPPING and part.failing is None:
        return replace(ended, state=PartState.WAITING, not_before=now) if part.again else ended
    if fulfilled:
        return replace(ended, done=True)
    if part.failing is None and seen.exit_code == 0 and plan.role in {Role.ENVIRONMENT, Role.EXPORT}:
        return replace(ended, done=True)
    if not wanted:
        return replace(ended, problem=problem)
    if seen.exit_code == BAD_CONFIGURATION and not part.was_ready and not seen.port_taken:
        return replace(ended, problem=problem, fatal=problem)
    failures = (*(one for one in part.failures if now - one < plan.patience.window), now)
    if len(failures) > plan.patience.most_failures:
        fatal = f"it failed {len(failures)} times, the last time: {problem}"
        return replace(ended, failures=failures, problem=problem, fatal=fatal)
    pause = min(plan.patience.longest_pause, plan.patience.first_pause * 2.0 ** (len(failures) - 1))
    return replace(
        ended,
        state=PartState.WAITING,
        not_before=now + pause,
        failures=failures,
        restarts=part.restarts + 1,
        problem=problem,
    )


def _how_it_ended(seen: PartFacts) -> str:
    if seen.exit_code is None:
        how = "it ended together with its keeper, which was killed or could not begin"
    elif seen.exit_code < 0:
        how = f"signal {_signal_name(-seen.exit_code)} ended it"
    else:
        how = f"it ended with exit status {seen.exit_code}"
    return f"{how}: {seen.problem}" if seen.problem else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)

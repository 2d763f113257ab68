"""The state machine of one component: its next state from an observation, and what the exit of its process means.

Always true: pure functions; a configuration error on the first start is not retried.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hermes_rl.core.exit_codes import BAD_CONFIGURATION, LIMIT_REACHED
from hermes_rl.orchestration.reconciler.unit import (
    Unit,
    UnitState,
    after_failure,
    after_ready,
    describe_exit,
)
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, Role

SHIM_LOST = "ended together with its shim, which was killed or failed to start"
# Roles that end by themselves when their work is done.
FINITE = frozenset({Role.BASELINE, Role.ENVIRONMENT, Role.EXPORT, Role.EVALUATION})
# A shim cleans up for a second or two after its component has ended.
STUCK_AFTER = 15.0


@dataclass(frozen=True, slots=True)
class ComponentObservation:
    """A snapshot of one component. `shim` and `process` say whether they are alive."""

    shim: bool = False
    process: bool = False
    started: bool = False
    """The process was started in this launch, whether or not it is alive now."""
    ready: bool = False
    url: str | None = None
    exit_code: int | None = None
    port_taken: bool = False
    """Another process listens on its port."""
    problem: str | None = None
    """The tail of its log, or why it could not be started."""

    @property
    def alive(self) -> bool:
        return self.shim or self.process


@dataclass(frozen=True, slots=True)
class Component(Unit):
    need_urls: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    was_ready: bool = False
    stop_sent: bool = False
    restart_after_stop: bool = False
    """Start it again once it has stopped, without counting a failure."""
    failure: str | None = None
    """Why the supervisor is stopping it; counted as a failure once it has stopped."""
    headless_since: float | None = None
    """Since when its shim has been alive without its process."""
    exit_code: int | None = None

    def is_stuck(self, now: float) -> bool:
        return self.headless_since is not None and now - self.headless_since > STUCK_AFTER


def mark_starting(component: Component, need_urls: Mapping[str, str], now: float) -> Component:
    return replace(
        component,
        state=UnitState.STARTING,
        since=now,
        need_urls=dict(need_urls),
        stop_sent=False,
        restart_after_stop=False,
        failure=None,
        headless_since=None,
    )


def mark_stopping(component: Component, now: float) -> Component:
    return replace(
        component, state=UnitState.STOPPING, since=now, stop_sent=True, restart_after_stop=False, failure=None
    )


def apply_observation(  # noqa: PLR0911 (one case per line)
    plan: ComponentPlan,
    component: Component,
    seen: ComponentObservation,
    now: float,
    *,
    clock_runs: bool,
    fulfilled: bool,
    wanted: bool,
) -> Component:
    """`clock_runs`: its needs are ready, so the readiness deadline applies. `fulfilled`: its work is done.

    `wanted`: it should be running.
    """
    if component.state.down:
        return component
    if not seen.alive:
        return _after_exit(plan, component, seen, now, fulfilled=fulfilled, wanted=wanted)
    if component.state is UnitState.STOPPING:
        return component
    headless = seen.shim and seen.started and not seen.process
    component = replace(component, headless_since=(component.headless_since or now) if headless else None)
    if seen.ready:
        component = replace(component, was_ready=True, url=seen.url, problem=None)
        return after_ready(plan.patience, component, now)
    if component.state is UnitState.READY:
        return replace(component, state=UnitState.STARTING, since=now)
    if not clock_runs:
        return replace(component, since=now)
    if now - component.since > plan.patience.ready_within:
        failure = f"not ready within {plan.patience.ready_within:g} s"
        return replace(mark_stopping(component, now), stop_sent=False, failure=failure)
    return component


def _after_exit(
    plan: ComponentPlan, component: Component, seen: ComponentObservation, now: float, *, fulfilled: bool, wanted: bool
) -> Component:
    problem = component.failure or describe_exit(seen.exit_code, seen.problem, unknown=SHIM_LOST)
    ended = replace(component, state=UnitState.EXITED, since=now, exit_code=seen.exit_code, headless_since=None)
    if component.state is UnitState.STOPPING and component.failure is None:
        return replace(ended, state=UnitState.WAITING, not_before=now) if component.restart_after_stop else ended
    over = {0, LIMIT_REACHED} if plan.role is Role.ENVIRONMENT else {0}
    finished = component.failure is None and seen.exit_code in over and plan.role in FINITE
    if fulfilled or finished:
        return replace(ended, done=True)
    if not wanted:
        return replace(ended, problem=problem)
    if seen.exit_code == BAD_CONFIGURATION and not component.was_ready and not seen.port_taken:
        return replace(ended, problem=problem, fatal=problem)
    return after_failure(plan.patience, ended, now, problem)

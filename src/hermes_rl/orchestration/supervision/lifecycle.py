"""The state machine of a run: from its progress and an observation to its next progress and the actions to take.

Always true: pure functions without side effects; a component starts only when its needs are ready and nothing of its
last launch is alive; components stop from the last rank to the first; an ended phase is final; a failed evaluation
never ends a run.

    STARTING ──all ready──▶ RUNNING
        │                      │
        └── stop requested, fatal component, last step taken ──────▶ STOPPING ──nothing left──▶ STOPPED
                                                                                                FAILED
                                                                                                FINISHED
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hermes_rl.core.exit_codes import LIMIT_REACHED
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.orchestration.supervision.component import (
    Component,
    ComponentObservation,
    apply_observation,
    mark_starting,
    mark_stopping,
)
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, Role

# How long the trainer may go on with queued groups after every environment has finished.
STARVED_SECONDS = 300.0
# How long a shim may take beyond its component's stop deadline.
STOP_GRACE = 5.0
ENDING_REASON = {
    Phase.STOPPED: "stopped by request",
    Phase.FINISHED: "the trainer finished its last step",
}


# How the reason of a run begins that a limit stopped.
LIMIT_REASON = "limit reached"


class DesiredRun(StrEnum):
    RUN = "run"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class RunObservation:
    """A snapshot of the run. `complete`: the trainer reports that it took its last step."""

    components: Mapping[str, ComponentObservation]
    wanted: DesiredRun = DesiredRun.RUN
    complete: bool = False
    limit: str | None = None
    """The limit of the whole run that is reached."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """`ending` is the final phase that a stopping run is heading for."""

    plan: tuple[ComponentPlan, ...]
    components: Mapping[str, Component]
    phase: Phase = Phase.STARTING
    ending: Phase | None = None
    complete: bool = False
    reason: str | None = None
    starved_since: float | None = None
    starved_seconds: float = STARVED_SECONDS

    @classmethod
    def new(cls, plan: tuple[ComponentPlan, ...], starved_seconds: float = STARVED_SECONDS) -> "RunProgress":
        return cls(plan, {spec.name: Component() for spec in plan}, starved_seconds=starved_seconds)

    def with_role(self, *roles: Role) -> list[ComponentPlan]:
        return [spec for spec in self.plan if spec.role in roles]

    @property
    def services(self) -> list[ComponentPlan]:
        """The components that run until the last step."""
        return [spec for spec in self.plan if spec.role not in {Role.EXPORT, Role.EVALUATION}]

    def settled(self, role: Role) -> bool:
        """Whether all components of the role are done, or cannot be."""
        return all(one.done or one.fatal for one in (self.components[spec.name] for spec in self.with_role(role)))


@dataclass(frozen=True, slots=True)
class StartComponent:
    component: str
    need_urls: Mapping[str, str] = field(default_factory=dict)
    """The URLs of the components it needs."""


@dataclass(frozen=True, slots=True)
class StopComponent:
    """Ask the shim to stop the component gracefully."""

    component: str


@dataclass(frozen=True, slots=True)
class KillComponent:
    """Kill the component and its shim."""

    component: str


Action = StartComponent | StopComponent | KillComponent


def decide(progress: RunProgress, observation: RunObservation, now: float) -> tuple[RunProgress, tuple[Action, ...]]:
    """`now` is a monotonic clock in seconds."""
    if progress.phase.ended:
        return progress, tuple(KillComponent(name) for name, seen in observation.components.items() if seen.alive)
    progress = replace(progress, complete=progress.complete or observation.complete)
    progress = _apply_observations(progress, observation, now)
    progress = _decide_ending(progress, observation, now)
    actions: list[Action] = []
    components = dict(progress.components)
    for plan in progress.plan:
        components[plan.name], step = _step_component(progress, plan, observation.components[plan.name], now)
        actions += step
    progress = replace(progress, components=components)
    for plan in _next_to_stop(progress, observation):
        components[plan.name] = mark_stopping(components[plan.name], now)
        actions.append(StopComponent(plan.name))
    progress = replace(progress, components=components)
    return replace(progress, phase=_next_phase(progress, observation)), tuple(actions)


def _apply_observations(progress: RunProgress, observation: RunObservation, now: float) -> RunProgress:
    _, may_stay = _allowed(progress)
    components = {}
    for plan in progress.plan:
        component, seen = progress.components[plan.name], observation.components[plan.name]
        fulfilled, wanted = progress.complete and plan.role is Role.TRAINER, plan.name in may_stay
        components[plan.name] = apply_observation(
            plan, component, seen, now, clock_runs=_needs_ready(progress, plan), fulfilled=fulfilled, wanted=wanted
        )
    return replace(progress, components=components)


def _decide_ending(progress: RunProgress, observation: RunObservation, now: float) -> RunProgress:  # noqa: PLR0911 (one case per line)
    """Decide whether the run goes on, or which final phase it heads for."""
    if progress.ending is Phase.FINISHED and not _last_work_settled(progress):
        if observation.wanted is DesiredRun.STOP:
            missing = "evaluated" if _export_settled(progress) else "exported"
            reason = f"{ENDING_REASON[Phase.STOPPED]} after its last step, before its weights were {missing}"
            return replace(progress, ending=Phase.STOPPED, reason=reason)
        return progress
    if progress.ending is Phase.FINISHED:
        return replace(progress, reason=_finish_reason(progress))
    if progress.ending is not None:
        return progress
    if observation.wanted is DesiredRun.STOP:
        return replace(progress, ending=Phase.STOPPED, reason=ENDING_REASON[Phase.STOPPED])
    if progress.complete:
        return replace(progress, ending=Phase.FINISHED, reason=ENDING_REASON[Phase.FINISHED])
    if (limit := observation.limit or _reached_limit(progress)) is not None:
        return replace(progress, ending=Phase.STOPPED, reason=f"{LIMIT_REASON}: {limit}")
    for plan in progress.services:
        fatal = progress.components[plan.name].fatal
        if fatal is not None and plan.role is not Role.BASELINE:
            return replace(progress, ending=Phase.FAILED, reason=f"{plan.name}: {fatal}")
    return _check_starved(progress, now)


def _reached_limit(progress: RunProgress) -> str | None:
    """Which environment used all of its tokens or money."""
    for plan in progress.with_role(Role.ENVIRONMENT):
        component = progress.components[plan.name]
        if component.done and component.exit_code == LIMIT_REACHED:
            return f"{plan.name} reached its limit of tokens or cost; see `hermes-rl run logs --part {plan.name}`"
    return None


def _check_starved(progress: RunProgress, now: float) -> RunProgress:
    """Fail a run without new training data: every environment that trains has finished."""
    producers = [plan for plan in progress.with_role(Role.ENVIRONMENT) if not plan.evaluation_only]
    if not producers or not all(progress.components[plan.name].done for plan in producers):
        return replace(progress, starved_since=None, reason=None)
    since = now if progress.starved_since is None else progress.starved_since
    names = ", ".join(plan.name for plan in producers)
    reason = f"{names} ran out of items before the trainer finished its last step"
    if now - since >= progress.starved_seconds:
        return replace(progress, ending=Phase.FAILED, reason=reason, starved_since=since)
    return replace(progress, starved_since=since, reason=f"{reason}; training continues with the queued groups")


def _allowed(progress: RunProgress) -> tuple[set[str], set[str]]:
    """The names of the components that may be started, and of those that may keep running."""
    services = {plan.name for plan in progress.services}
    if progress.ending is None:
        return services, services
    if progress.ending is Phase.FINISHED and not _last_work_settled(progress):
        ended = {plan.name for plan in progress.with_role(Role.BASELINE, Role.ENVIRONMENT)}
        needed = {plan.name for plan in progress.with_role(Role.ENGINE, Role.EXPORT, Role.EVALUATION)}
        return needed, services - ended | needed
    return set(), set()


def _last_work_settled(progress: RunProgress) -> bool:
    """Whether export and evaluation have finished, or cannot succeed."""
    return _export_settled(progress) and _evaluation_settled(progress)


def _export_settled(progress: RunProgress) -> bool:
    return _engine_lost(progress) or progress.settled(Role.EXPORT)


def _evaluation_settled(progress: RunProgress) -> bool:
    """Without the trainer, which is not started again after its last step, nothing serves the weights."""
    served = not any(progress.components[plan.name].state.down for plan in progress.with_role(Role.TRAINER))
    return not served or _engine_lost(progress) or progress.settled(Role.EVALUATION)


def _engine_lost(progress: RunProgress) -> bool:
    return any(progress.components[plan.name].fatal for plan in progress.with_role(Role.ENGINE))


def _finish_reason(progress: RunProgress) -> str:
    failed = [
        plan.name for plan in progress.with_role(Role.EXPORT, Role.ENGINE) if progress.components[plan.name].fatal
    ]
    if not failed:
        return ENDING_REASON[Phase.FINISHED]
    why = "; ".join(f"{name}: {progress.components[name].fatal}" for name in failed)
    return (
        f"{ENDING_REASON[Phase.FINISHED]}, but its weights were not exported: {why}; they are still in the engine: "
        "run `hermes-rl export` once the engine runs"
    )


def _step_component(  # noqa: PLR0911 (one case per line)
    progress: RunProgress, plan: ComponentPlan, seen: ComponentObservation, now: float
) -> tuple[Component, list[Action]]:
    """Start it when it may start, kill it when it overstays, restart it when the URL of one of its needs changed."""
    may_start, may_stay = (plan.name in names for names in _allowed(progress))
    component = progress.components[plan.name]
    match component.state:
        case UnitState.WAITING if progress.ending is not None and not may_start:
            kill: list[Action] = [KillComponent(plan.name)] if seen.alive else []
            return replace(component, state=UnitState.EXITED, since=now), kill
        case UnitState.WAITING | UnitState.EXITED if seen.alive:
            return component, [KillComponent(plan.name)]
        case UnitState.WAITING if may_start and now >= component.not_before and _can_start(progress, plan):
            need_urls = {need: progress.components[need].url or "" for need in plan.needs}
            return mark_starting(component, need_urls, now), [StartComponent(plan.name, need_urls)]
        case UnitState.STOPPING if now - component.since > plan.patience.stop_within + STOP_GRACE:
            return component, [KillComponent(plan.name)]
        case UnitState.STOPPING if not component.stop_sent and may_stay:
            return replace(component, stop_sent=True), [StopComponent(plan.name)]
        case UnitState.STOPPING if not component.stop_sent:
            # The run is ending, and will stop this component in its order.
            return replace(component, state=UnitState.STARTING, since=now, failure=None), []
        case UnitState.STARTING | UnitState.READY if component.is_stuck(now) or (seen.process and not seen.shim):
            return component, [KillComponent(plan.name)]
        case UnitState.STARTING | UnitState.READY if may_start and _need_moved(progress, component):
            return replace(mark_stopping(component, now), restart_after_stop=True), [StopComponent(plan.name)]
    return component, []


def _can_start(progress: RunProgress, plan: ComponentPlan) -> bool:
    environments = [progress.components[environment.name] for environment in progress.with_role(Role.ENVIRONMENT)]
    if plan.role in {Role.EXPORT, Role.EVALUATION} and not all(one.state.down for one in environments):
        return False
    if plan.role is Role.ENVIRONMENT and not progress.settled(Role.BASELINE):
        return False
    return _needs_ready(progress, plan)


def _needs_ready(progress: RunProgress, plan: ComponentPlan) -> bool:
    return all(progress.components[need].state is UnitState.READY for need in plan.needs)


def _need_moved(progress: RunProgress, component: Component) -> bool:
    """Whether a component it needs now has another URL than it was started with."""
    return any(
        progress.components[need].state is UnitState.READY and progress.components[need].url != url
        for need, url in component.need_urls.items()
    )


def _next_to_stop(progress: RunProgress, observation: RunObservation) -> Iterator[ComponentPlan]:
    """The components to stop now: those of the highest rank that is still up."""
    _, may_stay = _allowed(progress)
    states = {name: component.state for name, component in progress.components.items()}
    leaving = [plan for plan in progress.plan if plan.name not in may_stay]
    left = [plan for plan in leaving if observation.components[plan.name].alive or not states[plan.name].down]
    highest = max((plan.role.rank for plan in left), default=-1)
    for plan in left:
        if plan.role.rank == highest and states[plan.name] in {UnitState.STARTING, UnitState.READY}:
            yield plan


def _next_phase(progress: RunProgress, observation: RunObservation) -> Phase:
    if progress.ending is not None:
        over = all(progress.components[plan.name].state is UnitState.EXITED for plan in progress.plan)
        over = over and not any(seen.alive for seen in observation.components.values())
        return progress.ending if over else Phase.STOPPING
    services = [progress.components[plan.name] for plan in progress.services]
    # Only a baseline can be fatal here.
    ready = all(service.state is UnitState.READY or service.done or service.fatal for service in services)
    return Phase.RUNNING if ready else progress.phase

"""The course of a run, decided: from what is known of it and what is seen, to what it is next and what is to be done.

Always true: nothing here starts, stops or asks anything; a part is started only when what it needs is ready and nothing
of its last life is left; parts are ended from the last to the first; an ended phase is never left.

    STARTING ──all ready──▶ RUNNING
        │                      │
        └── stop wanted, a part beyond help, the last step taken ──▶ STOPPING ──nothing left──▶ STOPPED
                                                                                                FAILED
                                                                                                FINISHED
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hermes_rl.runs.states import PartState, Phase
from hermes_rl.runs.supervision.part_life import Part, PartFacts, begun, observed, told_to_stop
from hermes_rl.runs.supervision.parts import PartPlan, Role

# How long a trainer may go on with what is queued when nobody makes any more.
DRY_SECONDS = 300.0
# What a keeper may take beyond its part's deadline.
GRACE = 5.0
ENDING = {
    Phase.STOPPED: "stopped as asked",
    Phase.FINISHED: "it took its last step",
}


class Wanted(StrEnum):
    RUN = "run"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is seen at one moment. `complete`: the trainer says that it took its last step."""

    parts: Mapping[str, PartFacts]
    wanted: Wanted = Wanted.RUN
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Course:
    """A run as far as it has come. `ending` is where a stopping run is going."""

    plan: tuple[PartPlan, ...]
    parts: Mapping[str, Part]
    phase: Phase = Phase.STARTING
    ending: Phase | None = None
    complete: bool = False
    reason: str | None = None
    dry_since: float | None = None
    dry_seconds: float = DRY_SECONDS

    @classmethod
    def new(cls, plan: tuple[PartPlan, ...], dry_seconds: float = DRY_SECONDS) -> "Course":
        return cls(plan, {part.name: Part() for part in plan}, dry_seconds=dry_seconds)

    def of(self, *roles: Role) -> list[PartPlan]:
        return [part for part in self.plan if part.role in roles]


@dataclass(frozen=True, slots=True)
class Start:
    part: str
    given: Mapping[str, str] = field(default_factory=dict)
    """The addresses of those it needs."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask it to end; its keeper sees to it."""

    part: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End it and its keeper at once."""

    part: str


Action = Start | Stop | Kill


def decide(course: Course, facts: Facts, now: float) -> tuple[Course, tuple[Action, ...]]:
    """`now` counts in seconds from any beginning, and never goes back."""
    if course.phase.ended:
        return course, tuple(Kill(name) for name, seen in facts.parts.items() if seen.lives)
    course = replace(course, complete=course.complete or facts.complete)
    course = _with_what_is_seen(course, facts, now)
    course = _directed(course, facts, now)
    may_start, may_stay = _allowed(course)
    actions: list[Action] = []
    parts = dict(course.parts)
    for plan in course.plan:
        start, stay = plan.name in may_start, plan.name in may_stay
        part, action = _moved(course, plan, facts.parts[plan.name], now, may_start=start, may_stay=stay)
        parts[plan.name] = part
        actions += action
    course = replace(course, parts=parts)
    for plan in _to_be_ended(course, facts, may_stay):
        parts[plan.name] = told_to_stop(parts[plan.name], now)
        actions.append(Stop(plan.name))
    course = replace(course, parts=parts)
    return replace(course, phase=_phase(course, facts)), tuple(actions)


def _with_what_is_seen(course: Course, facts: Facts, now: float) -> Course:
    """Each part after what is seen of it."""
    _, may_stay = _allowed(course)
    parts = {}
    for plan in course.plan:
        needs_ready = all(course.parts[need].state is PartState.READY for need in plan.needs)
        parts[plan.name] = observed(
            plan,
            course.parts[plan.name],
            facts.parts[plan.name],
            now,
            clock_runs=needs_ready,
            fulfilled=course.complete and plan.role is Role.TRAINER,
            wanted=plan.name in may_stay,
        )
    return replace(course, parts=parts)


def _directed(course: Course, facts: Facts, now: float) -> Course:  # noqa: PLR0911 (a case a line)
    """Whether the run goes on, or to which end."""
    if course.ending is Phase.FINISHED and not _exported(course):
        if facts.wanted is Wanted.STOP:
            reason = f"{ENDING[Phase.STOPPED]}, after its last step and before its weights were exported"
            return replace(course, ending=Phase.STOPPED, reason=reason)
        return course
    if course.ending is Phase.FINISHED:
        return replace(course, reason=_finish(course))
    if course.ending is not None:
        return course
    if facts.wanted is Wanted.STOP:
        return replace(course, ending=Phase.STOPPED, reason=ENDING[Phase.STOPPED])
    if course.complete:
        return replace(course, ending=Phase.FINISHED, reason=ENDING[Phase.FINISHED])
    for plan in course.of(Role.ENGINE, Role.API, Role.TRAINER, Role.ENVIRONMENT):
        if (fatal := course.parts[plan.name].fatal) is not None:
            return replace(course, ending=Phase.FAILED, reason=f"{plan.name}: {fatal}")
    return _unless_dry(course, now)


def _unless_dry(course: Course, now: float) -> Course:
    """A run whose every trained environment has ended by itself makes nothing more to learn from."""
    makers = [plan for plan in course.of(Role.ENVIRONMENT) if not plan.evaluation_only]
    if not makers or not all(course.parts[plan.name].done for plan in makers):
        return replace(course, dry_since=None, reason=None)
    since = now if course.dry_since is None else course.dry_since
    names = ", ".join(plan.name for plan in makers)
    reason = f"{names} ended with no more to do before the trainer took its last step"
    if now - since >= course.dry_seconds:
        return replace(course, ending=Phase.FAILED, reason=reason, dry_since=since)
    return replace(course, dry_since=since, reason=f"{reason}; it goes on with what is queued")


def _allowed(course: Course) -> tuple[set[str], set[str]]:
    """Those that may be started, and those that may stay when they run."""
    services = {plan.name for plan in course.of(Role.ENGINE, Role.API, Role.TRAINER, Role.ENVIRONMENT)}
    if course.ending is None:
        return services, services
    if course.ending is Phase.FINISHED and not _exported(course):
        makers = {plan.name for plan in course.of(Role.ENVIRONMENT)}
        needed = {plan.name for plan in course.of(Role.ENGINE, Role.EXPORT)}
        return needed, services - makers | needed
    return set(), set()


def _exported(course: Course) -> bool:
    """Whether nothing more is to be done for the weights; also when they cannot be had."""
    exports = course.of(Role.EXPORT)
    stuck = any(course.parts[plan.name].fatal for plan in course.of(Role.ENGINE))
    return stuck or all(course.parts[plan.name].done or course.parts[plan.name].fatal for plan in exports)


def _finish(course: Course) -> str:
    exports = [plan for plan in course.of(Role.EXPORT, Role.ENGINE) if course.parts[plan.name].fatal]
    if not exports:
        return ENDING[Phase.FINISHED]
    why = "; ".join(f"{plan.name}: {course.parts[plan.name].fatal}" for plan in exports)
    return (
        f"{ENDING[Phase.FINISHED]}, but its weights are not exported: {why}; they are kept, and `hermes-rl export` "
        "takes them out once the engine runs"
    )


def _moved(  # noqa: PLR0911 (a case a line)
    course: Course, plan: PartPlan, seen: PartFacts, now: float, *, may_start: bool, may_stay: bool
) -> tuple[Part, list[Action]]:
    """One that waits is started when it may be, one that lives too long killed, one with old addresses begun anew."""
    part = course.parts[plan.name]
    match part.state:
        case PartState.WAITING if course.ending is not None and not may_start:
            return replace(part, state=PartState.EXITED, since=now), [Kill(plan.name)] if seen.lives else []
        case PartState.WAITING | PartState.EXITED if seen.lives:
            return part, [Kill(plan.name)]
        case PartState.WAITING if may_start and now >= part.not_before and _has_what_it_needs(course, plan):
            given = {need: course.parts[need].url or "" for need in plan.needs}
            return begun(part, given, now), [Start(plan.name, given)]
        case PartState.STOPPING if now - part.since > plan.patience.stop_within + GRACE:
            return part, [Kill(plan.name)]
        case PartState.STOPPING if not part.asked and may_stay:
            return replace(part, asked=True), [Stop(plan.name)]
        case PartState.STOPPING if not part.asked:
            # The run ends, and this part with it when its turn comes.
            return replace(part, state=PartState.STARTING, since=now, failing=None), []
        case PartState.STARTING | PartState.READY if part.hangs(now) or (seen.process and not seen.keeper):
            return part, [Kill(plan.name)]
        case PartState.STARTING | PartState.READY if may_start and _moved_away(course, part):
            return replace(told_to_stop(part, now), again=True), [Stop(plan.name)]
    return part, []


def _has_what_it_needs(course: Course, plan: PartPlan) -> bool:
    if plan.role is Role.EXPORT and not all(_gone(course.parts[one.name]) for one in course.of(Role.ENVIRONMENT)):
        return False
    return all(course.parts[need].state is PartState.READY for need in plan.needs)


def _moved_away(course: Course, part: Part) -> bool:
    """Whether one that it needs has another address by now than the one it was given."""
    return any(
        course.parts[need].state is PartState.READY and course.parts[need].url != url
        for need, url in part.given.items()
    )


def _to_be_ended(course: Course, facts: Facts, may_stay: set[str]) -> Iterator[PartPlan]:
    """Those whose turn it is: nothing of a higher rank that is to end is left."""
    leaving = [plan for plan in course.plan if plan.name not in may_stay]
    left = [plan for plan in leaving if facts.parts[plan.name].lives or not _gone(course.parts[plan.name])]
    highest = max((plan.role.rank for plan in left), default=-1)
    for plan in left:
        if plan.role.rank == highest and course.parts[plan.name].state in {PartState.STARTING, PartState.READY}:
            yield plan


def _gone(part: Part) -> bool:
    return part.state in {PartState.WAITING, PartState.EXITED}


def _phase(course: Course, facts: Facts) -> Phase:
    if course.ending is not None:
        over = all(course.parts[plan.name].state is PartState.EXITED for plan in course.plan)
        over = over and not any(seen.lives for seen in facts.parts.values())
        return course.ending if over else Phase.STOPPING
    services = course.of(Role.ENGINE, Role.API, Role.TRAINER, Role.ENVIRONMENT)
    ready = all(course.parts[one.name].state is PartState.READY or course.parts[one.name].done for one in services)
    return Phase.RUNNING if ready else course.phase

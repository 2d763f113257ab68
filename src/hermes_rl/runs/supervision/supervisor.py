"""The supervisor of one run: looks, decides, acts and says so, five times a second, until the run has ended.

Always true: one supervisor a run, by its lock; what it knows is in state.json and in its keepers' notes, so another can
take over at any moment; an error in one round, or a full disk, is told and does not end it.
"""

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from hermes_rl import jsontext
from hermes_rl.errors import HermesRLError
from hermes_rl.processes import Identity
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.states import PartStanding, PartState, Phase, RunState, read_state
from hermes_rl.runs.supervision.lifecycle import Course, Facts, Kill, Start, Stop, decide
from hermes_rl.runs.supervision.lives import Adopted, Lives
from hermes_rl.runs.supervision.marks import is_free
from hermes_rl.runs.supervision.part_life import Part
from hermes_rl.runs.supervision.parts import Role, read_plan
from hermes_rl.runs.supervision.record import Record
from hermes_rl.runs.supervision.wanted import Wish, read_wish
from hermes_rl.tracing.opening import Tracing, export_span

log = logging.getLogger(__name__)

ROUND = 0.2
SAY_EVERY = 2.0
# Longer than a dying supervisor takes to let go.
LOCK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Times:
    """Of this attempt, in Unix seconds; `ran_before` counts those before it."""

    attempt: int
    started_at: float
    changed_at: float
    ran_before: float = 0.0


class Supervisor:
    def __init__(self, places: RunPlaces, told: RunState | None, wish: Wish) -> None:
        self._places = places
        plan = read_plan(places.plan)
        self._plan = plan
        self._lives = Lives(places, plan)
        given = self._lives.adopt()
        self._course = taken_up(Course.new(plan.parts), told, given, wish, time.monotonic())
        self._me = Identity.of(os.getpid())
        self._times = times_of(told, wish, time.time())
        self._said: RunState | None = None
        self._said_at = 0.0
        self._record = Record(places)

    def run(self, lock: int) -> None:
        while True:
            with suppress(OSError):
                os.utime(lock)
            try:
                self._round()
            except Exception:
                log.exception("a round failed")
            if self._course.phase.ended and self._is_over():
                break
            time.sleep(ROUND)
        self._record.close()
        self._lives.close()
        self._trace()

    def _round(self) -> None:
        self._lives.reap()
        facts = self._facts()
        before = self._course.phase
        self._course, actions = decide(self._course, facts, time.monotonic())
        if self._course.phase is not before:
            self._times = replace(self._times, changed_at=time.time())
            log.info("%s: %s", self._course.phase, self._course.reason or "")
        for action in actions:
            log.info("%s", action)
            match action:
                case Start(part, given):
                    self._lives.start(part, given)
                case Stop(part):
                    self._lives.stop(part)
                case Kill(part):
                    self._lives.kill(part)
        self._say()

    def _facts(self) -> Facts:
        urls = {name: part.url for name, part in self._course.parts.items() if part.url}
        parts = {plan.name: self._lives.seen(plan.name, urls) for plan in self._course.plan}
        wish = read_wish(self._places)
        if self._course.ending is None:
            # A `resume` that came when we had begun asks for no more than what we do.
            self._times = replace(self._times, attempt=max(wish.attempt, self._times.attempt))
        return Facts(parts, wish.wanted, self._is_complete())

    def _is_complete(self) -> bool:
        """Whether the trainer, in a life that we know, says so; a file of an earlier life says nothing of this one."""
        known = {self._lives.process_id(trainer.name) for trainer in self._course.of(Role.TRAINER)} - {None}
        try:
            told = jsontext.loads((self._places.folder / "run.json").read_bytes())
        except (OSError, ValueError):
            return False
        return told.get("state") == "complete" and told.get("pid") in known

    def _say(self) -> None:
        """Say what is new, and at least that we live."""
        now = time.time()
        state = replace(self._state(), said_at=0.0)
        if state == self._said and time.monotonic() - self._said_at < SAY_EVERY:
            return
        try:
            replace(state, said_at=now).write(self._places.state)
        except OSError as error:
            log.warning("the state cannot be written: %s", error)
            return
        self._said, self._said_at = state, time.monotonic()
        self._record.put(state.phase)

    def _trace(self) -> None:
        """The span of the run itself, which all of its parts' are inside of."""
        if self._plan.trace is None or self._plan.traceparent is None:
            return
        course = self._course
        try:
            export_span(
                Tracing.of(self._plan.trace),
                self._plan.traceparent,
                "run",
                began=self._times.started_at,
                attributes={"run": self._places.run_id, "attempt": self._times.attempt, "phase": str(course.phase)},
                error=str(course.phase) if course.phase is Phase.FAILED else None,
                report=log.warning,
            )
        except HermesRLError as error:
            log.warning("the run's own span cannot be exported: %s", error)

    def _is_over(self) -> bool:
        """Whether the end is said, and nothing is left that nobody keeps."""
        said = self._said is not None and self._said.phase is self._course.phase
        return said and self._lives.nothing_left()

    def _state(self) -> RunState:
        course = self._course
        return RunState(
            run_id=self._places.run_id,
            phase=course.phase,
            supervisor=None if course.phase.ended else self._me,
            parts={plan.name: self._standing(plan.name, course.parts[plan.name]) for plan in course.plan},
            reason=course.reason,
            started_at=self._times.started_at,
            changed_at=self._times.changed_at,
            ran_before=self._times.ran_before,
            ending=course.ending,
            complete=course.complete,
            attempt=self._times.attempt,
        )

    def _standing(self, name: str, part: Part) -> PartStanding:
        keeper, process = self._lives.identities(name)
        return PartStanding(
            state=part.state,
            keeper=keeper,
            process=process,
            url=part.url,
            restarts=part.restarts,
            exit_code=part.exit_code,
            problem=part.fatal or part.problem,
        )


def times_of(told: RunState | None, wish: Wish, now: float) -> Times:
    if told is None:
        return Times(wish.attempt, now, now)
    if told.attempt == wish.attempt:
        return Times(told.attempt, told.started_at, told.changed_at, told.ran_before)
    until = told.changed_at if told.phase.ended else told.said_at
    return Times(wish.attempt, now, now, told.ran_before + max(0.0, until - told.started_at))


def taken_up(course: Course, told: RunState | None, given: Mapping[str, Adopted], wish: Wish, now: float) -> Course:
    """The course where the last supervisor left it. What lives counts as starting until it is seen to be ready."""
    parts = dict(course.parts)
    goes_on = told is not None and told.attempt == wish.attempt
    for name, new in course.parts.items():
        part = new
        standing = told.parts.get(name) if told is not None and goes_on else None
        if standing is not None and told is not None:
            was_ready = standing.state is PartState.READY or told.phase is Phase.RUNNING
            part = replace(part, restarts=standing.restarts, was_ready=was_ready, url=standing.url)
        ended_unseen = standing is not None and standing.state is not PartState.WAITING
        if name in given and (given[name].lives or ended_unseen):
            part = replace(part, state=PartState.STARTING, since=now, given=given[name].given)
        parts[name] = part
    if told is None or not goes_on:
        return replace(course, parts=parts)
    return replace(
        course, parts=parts, phase=told.phase, ending=told.ending, complete=told.complete, reason=told.reason
    )


def supervise(run_id: str) -> None:
    """Until the run has ended; returns at once when another supervisor is at work, or nothing is to be done."""
    places = RunPlaces(run_id)
    lock = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + LOCK_SECONDS
    while not is_free(lock, keep=True):
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)
    while _is_wanted(places):
        _attempt(places, lock)
    # Here and not with the process, whose last threads may take seconds to end: a `resume` waits for it.
    os.close(lock)


def _is_wanted(places: RunPlaces) -> bool:
    told = read_state(places.state)
    return told is None or not told.phase.ended or told.attempt < read_wish(places).attempt


def _attempt(places: RunPlaces, lock: int) -> None:
    told, wish = read_state(places.state), read_wish(places)
    try:
        supervisor = Supervisor(places, told, wish)
    except Exception as error:
        log.exception("the run cannot be supervised")
        reason = f"it cannot be supervised: {error}; mend that, then `hermes-rl run resume {places.run_id}`"
        now = time.time()
        failed = RunState(places.run_id, Phase.FAILED, None, reason=reason, changed_at=now, said_at=now)
        times = times_of(told, wish, now)
        replace(
            failed, started_at=times.started_at, ran_before=times.ran_before, attempt=times.attempt, ending=Phase.FAILED
        ).write(places.state)
        return
    supervisor.run(lock)

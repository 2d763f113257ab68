"""Where a supervisor takes up what the last one left."""

from hermes_rl.runs.states import PartStanding, PartState, Phase, RunState
from hermes_rl.runs.supervision.lifecycle import Course
from hermes_rl.runs.supervision.lives import Adopted
from hermes_rl.runs.supervision.parts import PartPlan, Role
from hermes_rl.runs.supervision.supervisor import taken_up, times_of
from hermes_rl.runs.supervision.wanted import Wish

PLAN = (PartPlan("api", Role.API, ()), PartPlan("trainer", Role.TRAINER, (), ("api",)))
TOLD = RunState(
    "r1",
    Phase.RUNNING,
    None,
    {"api": PartStanding(PartState.READY, restarts=2), "trainer": PartStanding(PartState.WAITING)},
    started_at=100.0,
    changed_at=150.0,
    said_at=180.0,
)
ALIVE = {"api": Adopted({}, lives=True)}
DEAD = {"api": Adopted({}, lives=False), "trainer": Adopted({"api": "http://a"}, lives=False)}


def test_what_lives_is_looked_at_and_not_started_again() -> None:
    course = taken_up(Course.new(PLAN), TOLD, ALIVE, Wish(), 5.0)
    assert course.phase is Phase.RUNNING
    assert course.parts["api"].state is PartState.STARTING
    assert (course.parts["api"].restarts, course.parts["api"].was_ready) == (2, True)
    assert course.parts["trainer"].state is PartState.WAITING


def test_what_died_unseen_is_seen_to_have_ended() -> None:
    course = taken_up(Course.new(PLAN), TOLD, DEAD, Wish(), 5.0)
    assert course.parts["api"].state is PartState.STARTING


def test_another_attempt_begins_anew() -> None:
    course = taken_up(Course.new(PLAN), TOLD, DEAD, Wish(attempt=2), 5.0)
    assert course == Course.new(PLAN)


def test_a_run_that_was_ending_goes_on_to_its_end() -> None:
    told = RunState("r1", Phase.STOPPING, None, ending=Phase.FAILED, reason="api: it failed")
    course = taken_up(Course.new(PLAN), told, {}, Wish(), 5.0)
    assert (course.ending, course.reason) == (Phase.FAILED, "api: it failed")


def test_the_time_between_two_attempts_is_no_running_time() -> None:
    times = times_of(TOLD, Wish(attempt=2), 1000.0)
    assert (times.started_at, times.ran_before) == (1000.0, 80.0)


def test_a_takeover_changes_no_times() -> None:
    times = times_of(TOLD, Wish(), 1000.0)
    assert (times.started_at, times.changed_at) == (100.0, 150.0)

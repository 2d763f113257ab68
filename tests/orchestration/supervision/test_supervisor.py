"""Where a supervisor takes up what the last one left."""

import json
from pathlib import Path

import pytest

from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import ComponentStatus, Phase, RunState
from hermes_rl.orchestration.supervision.component_processes import AdoptedComponent
from hermes_rl.orchestration.supervision.desired_state import DesiredState
from hermes_rl.orchestration.supervision.lifecycle import RunProgress
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, Role, RunPlan
from hermes_rl.orchestration.supervision.supervisor import Supervisor, attempt_times, restore_progress

PLAN = (ComponentPlan("api", Role.API, ()), ComponentPlan("trainer", Role.TRAINER, (), ("api",)))
TOLD = RunState(
    "r1",
    Phase.RUNNING,
    None,
    {"api": ComponentStatus(UnitState.READY, restarts=2), "trainer": ComponentStatus(UnitState.WAITING)},
    started_at=100.0,
    changed_at=150.0,
    said_at=180.0,
)
ALIVE = {"api": AdoptedComponent({}, alive=True)}
DEAD = {"api": AdoptedComponent({}, alive=False), "trainer": AdoptedComponent({"api": "http://a"}, alive=False)}


def test_what_lives_is_looked_at_and_not_started_again() -> None:
    course = restore_progress(RunProgress.new(PLAN), TOLD, ALIVE, DesiredState(), 5.0)
    assert course.phase is Phase.RUNNING
    assert course.components["api"].state is UnitState.STARTING
    assert (course.components["api"].restarts, course.components["api"].was_ready) == (2, True)
    assert course.components["trainer"].state is UnitState.WAITING


def test_what_died_unseen_is_seen_to_have_ended() -> None:
    course = restore_progress(RunProgress.new(PLAN), TOLD, DEAD, DesiredState(), 5.0)
    assert course.components["api"].state is UnitState.STARTING


def test_another_attempt_begins_anew() -> None:
    course = restore_progress(RunProgress.new(PLAN), TOLD, DEAD, DesiredState(attempt=2), 5.0)
    assert course == RunProgress.new(PLAN)


def test_a_run_that_was_ending_goes_on_to_its_end() -> None:
    told = RunState("r1", Phase.STOPPING, None, ending=Phase.FAILED, reason="api: it failed")
    course = restore_progress(RunProgress.new(PLAN), told, {}, DesiredState(), 5.0)
    assert (course.ending, course.reason) == (Phase.FAILED, "api: it failed")


def test_the_time_between_two_attempts_is_no_running_time() -> None:
    times = attempt_times(TOLD, DesiredState(attempt=2), 1000.0)
    assert (times.started_at, times.ran_before) == (1000.0, 80.0)


def test_a_takeover_changes_no_times() -> None:
    times = attempt_times(TOLD, DesiredState(), 1000.0)
    assert (times.started_at, times.changed_at) == (100.0, 150.0)


def test_the_limit_of_a_trainer_is_that_of_its_last_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    paths = RunPaths("r1")
    RunPlan(PLAN).write(paths.plan)
    supervisor = Supervisor(paths, None, DesiredState())
    monkeypatch.setattr(supervisor._processes, "process_id", {"api": 1, "trainer": 7}.get)
    for pid, limit in ((6, None), (7, "audit gap")):
        (paths.folder / "run.json").write_text(json.dumps({"state": "stopped", "pid": pid, "limit": "audit gap"}))
        assert supervisor._observe().limit == limit

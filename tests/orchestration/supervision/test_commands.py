"""What people do with a run, as far as it needs no processes."""

from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.run_file import EnvironmentEntry, RunFile
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import Phase, RunState, read_state
from hermes_rl.orchestration.supervision import commands
from hermes_rl.orchestration.supervision.commands import await_phase, resume_run, start_run, stop_run
from hermes_rl.orchestration.supervision.desired_state import read_desired_state, write_desired_state
from hermes_rl.orchestration.supervision.lifecycle import DesiredRun
from hermes_rl.orchestration.supervision.run_plan import RunPlan

RUN = RunFile(run_id="r1", name="one", preset="p", environments=(EnvironmentEntry(name="words", reference="words.py"),))
NOTHING = RunPlan(())


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs for which a supervisor would have been started."""
    started: list[str] = []
    monkeypatch.setattr(commands, "_start_supervisor", lambda places: started.append(places.run_id))
    return started


def say(phase: Phase, attempt: int = 1) -> None:
    RunState("r1", phase, None, attempt=attempt).write(RunPaths("r1").state)


def test_a_run_of_the_same_id_is_not_started_twice(begun: list[str]) -> None:
    start_run(RUN, plan=NOTHING)
    with pytest.raises(ConfigError, match="hermes-rl run resume r1"):
        start_run(RUN, plan=NOTHING)
    assert begun == ["r1"]


def test_what_a_killed_start_left_does_not_hinder_the_next(begun: list[str]) -> None:
    NOTHING.write(RunPaths("r1").plan)
    start_run(RUN, plan=NOTHING)
    assert begun == ["r1"]


def test_the_folder_of_a_trainer_alone_is_not_taken() -> None:
    RunPaths("r1").folder.mkdir(parents=True)
    (RunPaths("r1").folder / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="run r1 already exists"):
        start_run(RUN, plan=NOTHING)


def test_a_start_that_fails_leaves_nothing_to_trip_over(begun: list[str]) -> None:
    entry = EnvironmentEntry(name="words", reference="words.py", openai={"api_key": "sk-real-secret"})
    with pytest.raises(ConfigError):
        start_run(RUN.model_copy(update={"environments": (entry,)}))
    assert not RunPaths("r1").folder.exists()
    assert not begun


@pytest.mark.parametrize("act", [stop_run, resume_run])
def test_an_unknown_run_is_told_with_the_next_step(act: object) -> None:
    assert callable(act)
    with pytest.raises(ConfigError, match="hermes-rl run list"):
        act("nobody")


def test_a_stop_is_said_once_and_again(begun: list[str]) -> None:
    start_run(RUN, plan=NOTHING)
    stop_run("r1")
    stop_run("r1")
    assert read_desired_state(RunPaths("r1")).wanted is DesiredRun.STOP


@pytest.mark.usefixtures("begun")
def test_a_run_that_has_ended_is_not_asked_to_stop() -> None:
    start_run(RUN, plan=NOTHING)
    say(Phase.FAILED)
    stop_run("r1")
    assert read_desired_state(RunPaths("r1")).wanted is DesiredRun.RUN


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.FAILED, Phase.RUNNING])
def test_a_resume_is_another_attempt(begun: list[str], phase: Phase) -> None:
    start_run(RUN, plan=NOTHING)
    say(phase)
    resume_run("r1", plan=NOTHING)
    assert read_desired_state(RunPaths("r1")).attempt == 2
    assert begun == ["r1", "r1"]


@pytest.mark.usefixtures("begun")
def test_a_finished_run_cannot_be_resumed_and_the_results_are_named() -> None:
    start_run(RUN, plan=NOTHING)
    say(Phase.FINISHED)
    with pytest.raises(ConfigError, match="hermes-rl run results r1"):
        resume_run("r1", plan=NOTHING)


@pytest.mark.usefixtures("begun")
def test_a_run_at_work_is_left_alone_by_resume() -> None:
    from hermes_rl.core.file_lock import exclusive_lock

    start_run(RUN, plan=NOTHING)
    say(Phase.RUNNING)
    with exclusive_lock(RunPaths("r1").lock, "--run"):
        resume_run("r1", plan=NOTHING)
        assert read_desired_state(RunPaths("r1")).attempt == 1
        say(Phase.STOPPING)
        with pytest.raises(ConfigError, match="still stopping"):
            resume_run("r1", plan=NOTHING)


@pytest.mark.usefixtures("begun")
def test_waiting_for_a_phase_does_not_take_an_earlier_attempt_for_it() -> None:
    start_run(RUN, plan=NOTHING)
    say(Phase.STOPPED)
    assert await_phase("r1", {Phase.STOPPED}, 1).phase is Phase.STOPPED
    write_desired_state(RunPaths("r1"), DesiredRun.RUN, another_attempt=True)
    with pytest.raises(TimeoutError, match="is stopped"):
        await_phase("r1", {Phase.STOPPED}, 0.2)


def test_what_a_supervisor_says_comes_back_from_its_file(tmp_path: Path) -> None:
    state = RunState("r1", Phase.STOPPING, None, ending=Phase.FAILED, attempt=3, complete=True)
    state.write(tmp_path / "state.json")
    assert read_state(tmp_path / "state.json") == state

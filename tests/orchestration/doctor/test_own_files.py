"""Keys, the engine's environment, and runs that nobody ended."""

import os
import time
from pathlib import Path

import pytest

from hermes_rl.core.keys import key_file
from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import write_atomic_json
from hermes_rl.orchestration.doctor import own_files
from hermes_rl.orchestration.doctor.finding import FindingState
from hermes_rl.orchestration.keys import key_names, set_key
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import ComponentStatus, Phase, RunState

SECRET = "canary-0123456789-abcdefgh"
GONE = ProcessIdentity(2**22 + 1, "never")


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    for name in key_names():
        monkeypatch.delenv(name, raising=False)


def run(run_id: str, phase: Phase, keeper: ProcessIdentity) -> None:
    """A run of which its supervisor, now gone, last spoke a minute after it was asked for."""
    places = RunPaths(run_id)
    places.folder.mkdir(parents=True)
    now = time.time()
    parts = {"api": ComponentStatus(UnitState.READY, keeper=keeper)}
    RunState(run_id, phase, GONE, parts, started_at=now, changed_at=now, said_at=now).write(places.state)
    write_atomic_json(places.wanted, {"wanted": "run", "at": now - 60})


def test_a_key_file_that_others_can_read_is_told_with_the_line_that_mends_it() -> None:
    set_key("HF_TOKEN", SECRET)
    key_file().chmod(0o640)
    (found,) = own_files.key_file_permissions()
    assert (found.state, found.fix) == (FindingState.MISSING, f"chmod 600 {key_file()}")


def test_a_closed_key_file_is_ok() -> None:
    set_key("HF_TOKEN", SECRET)
    assert [one.state for one in own_files.key_file_permissions()] == [FindingState.OK]


def test_no_key_file_is_no_sickness() -> None:
    assert [one.state for one in own_files.key_file_permissions()] == [FindingState.ABSENT]


def test_a_key_is_shown_masked_and_with_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    set_key("HF_TOKEN", SECRET)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    found = {one.check: one for one in own_files.known_keys()}
    assert found["key HF_TOKEN"].what.startswith("…efgh in the key file")
    assert found["key WANDB_API_KEY"].what.startswith("…efgh in a variable")
    assert SECRET not in str(found)


def test_a_key_that_is_not_set_says_what_it_would_be_for() -> None:
    (found,) = (one for one in own_files.known_keys() if one.check == "key TINKER_API_KEY")
    assert found.state is FindingState.ABSENT
    assert "hosted Tinker" in found.what


def test_an_engine_environment_counts_when_it_was_made_to_the_end(tmp_path: Path) -> None:
    place = tmp_path / "rl" / "engines" / "skyrl-0123"
    place.mkdir(parents=True)
    assert [one.state for one in own_files.engine_environment()] == [FindingState.ABSENT]
    (place / "complete").touch()
    assert [one.state for one in own_files.engine_environment()] == [FindingState.OK]


def test_a_run_whose_processes_are_gone_is_told_with_the_line_that_goes_on() -> None:
    run("lost", Phase.RUNNING, GONE)
    (found,) = own_files.runs()
    assert (found.check, found.fix) == ("run lost", "hermes-rl run resume lost")


def test_a_run_that_goes_on_is_no_finding() -> None:
    run("alive", Phase.RUNNING, ProcessIdentity.from_pid(os.getpid()))
    assert [one.state for one in own_files.runs()] == [FindingState.OK]


def test_a_run_that_ended_well_is_no_finding() -> None:
    run("done", Phase.FINISHED, GONE)
    assert [one.state for one in own_files.runs()] == [FindingState.OK]


def test_a_run_that_ended_and_left_a_process_is_told() -> None:
    run("half", Phase.STOPPED, ProcessIdentity.from_pid(os.getpid()))
    (found,) = own_files.runs()
    assert str(os.getpid()) in found.what
    assert found.fix == f"kill {os.getpid()}"


def test_a_state_that_cannot_be_read_hides_no_other_run() -> None:
    run("lost", Phase.RUNNING, GONE)
    run("torn", Phase.RUNNING, GONE)
    RunPaths("torn").state.write_text("{")
    assert {one.check for one in own_files.runs()} == {"run lost", "run torn"}


def test_of_many_interrupted_runs_the_newest_are_named() -> None:
    for number in range(8):
        run(f"lost-{number}", Phase.RUNNING, GONE)
        os.utime(RunPaths(f"lost-{number}").folder, (number, number))
    found = own_files.runs()
    assert [one.check for one in found][:2] == ["run lost-7", "run lost-6"]
    assert found[-1].what == "and 3 more"

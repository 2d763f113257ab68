import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import ComponentStatus, Phase
from hermes_rl.orchestration.status.derive import LivePhase, live_phase
from hermes_rl.orchestration.status.inspect import gather_facts
from hermes_rl.orchestration.status.status import status
from tests.support.recorded_runs import DEAD, living, make_run, run_file, write_note


def test_a_run_whose_processes_live_is_running() -> None:
    make_run()
    assert live_phase(gather_facts("r1")) is LivePhase.RUNNING


def test_a_run_whose_processes_are_gone_was_interrupted() -> None:
    make_run(alive=False)
    assert live_phase(gather_facts("r1")) is LivePhase.INTERRUPTED


def test_a_run_whose_supervisor_is_gone_recovers() -> None:
    make_run(supervisor=False)
    assert live_phase(gather_facts("r1")) is LivePhase.RECOVERING


def test_a_process_that_ends_is_seen_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        who = ProcessIdentity.from_pid(process.pid)
        make_run(parts={"api": ComponentStatus(UnitState.READY, living(), who)})
        assert status("r1")["processes"]["api"]["status"] == "running"
        process.kill()
        process.wait()
        assert status("r1")["processes"]["api"]["status"] == "exited (code unknown)"


def test_the_exit_that_only_the_keeper_has_seen_is_told() -> None:
    places = make_run(parts={"api": ComponentStatus(UnitState.READY, living(), DEAD)})
    write_note(places, "api", DEAD, -9)
    assert status("r1")["processes"]["api"]["status"] == "killed by SIGKILL"


def test_the_exit_of_an_earlier_life_is_not_taken_for_this_one() -> None:
    places = make_run(parts={"api": ComponentStatus(UnitState.READY, living(), DEAD)})
    write_note(places, "api", ProcessIdentity(2, "earlier"), 0)
    assert status("r1")["processes"]["api"]["status"] == "exited (code unknown)"


def test_a_part_that_was_never_started_has_not_exited() -> None:
    make_run(phase=Phase.STOPPED, parts={"api": ComponentStatus(UnitState.EXITED)})
    assert status("r1")["processes"]["api"]["status"] == "not started"


def test_a_folder_without_a_state_is_starting_while_it_is_new() -> None:
    make_run(phase=None, by=ProcessIdentity.from_pid(os.getpid()), age=1)
    assert live_phase(gather_facts("r1")) is LivePhase.STARTING


def test_a_folder_without_a_state_whose_maker_is_dead_is_interrupted() -> None:
    make_run(phase=None, by=ProcessIdentity(os.getpid(), "another moment"))
    assert live_phase(gather_facts("r1")) is LivePhase.INTERRUPTED


def test_a_supervisor_that_comes_is_seen_before_it_speaks() -> None:
    places = make_run(phase=None)
    places.coming.write_text(json.dumps(asdict(ProcessIdentity.from_pid(os.getpid()))))
    assert live_phase(gather_facts("r1")) is LivePhase.STARTING


def test_a_folder_without_a_state_is_interrupted_when_it_is_old() -> None:
    make_run(phase=None, age=600)
    assert live_phase(gather_facts("r1")) is LivePhase.INTERRUPTED


def test_a_lock_that_was_touched_is_a_sign_of_life() -> None:
    places = make_run(said_at=1.0)
    places.lock.touch()
    assert "supervisor_silent_seconds" not in status("r1")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"phase": "dreaming", "parts": {}, "supervisor": null}'])
def test_a_damaged_state_is_told_and_raises_nothing(damage: str) -> None:
    places = make_run()
    places.state.write_text(damage)
    said = status("r1")
    assert said["status"] == "interrupted"
    assert "state.json cannot be read" in said["reason"]


@pytest.mark.parametrize("damage", ["", "[1]", '{"wanted": 3, "at": "now"}'])
def test_a_damaged_wish_changes_nothing(damage: str) -> None:
    places = make_run()
    places.wanted.write_text(damage)
    assert status("r1")["status"] == "running"


def test_a_damaged_run_file_leaves_the_rest() -> None:
    places = make_run()
    places.file.write_text("environments: [")
    said = status("r1")
    assert (said["status"], said["environment"], said["environments"]) == ("running", None, [])


def test_an_unknown_run_is_refused_with_those_like_it() -> None:
    make_run("words-1a2b")
    with pytest.raises(ConfigError, match=r"no run 'words-1a2c'; did you mean words-1a2b"):
        gather_facts("words-1a2c")


def test_where_there_is_no_run_the_first_step_is_told() -> None:
    with pytest.raises(ConfigError, match="hermes-rl train"):
        gather_facts("r1")


def test_a_folder_of_a_trainer_alone_is_no_run() -> None:
    folder = RunPaths("default").folder
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="no run 'default'"):
        gather_facts("default")


def test_an_id_that_leads_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a run id"):
        gather_facts("../../etc")


def test_a_run_in_the_middle_of_starting_tells_each_part_as_it_is() -> None:
    file = run_file("r1")
    parts = {
        "api": ComponentStatus(UnitState.READY, living(), living(), url="http://127.0.0.1:1"),
        "trainer": ComponentStatus(UnitState.STARTING, living(), living()),
        "env": ComponentStatus(),
    }
    make_run(phase=Phase.STARTING, parts=parts, file=file)
    told = status("r1")["processes"]
    assert [part["status"] for part in told.values()] == ["running", "starting", "waiting"]
    assert told["api"]["url"] == "http://127.0.0.1:1"
    assert told["env"]["pid"] is None

import asyncio
import sqlite3
import time

import pytest

from hermes_rl.orchestration.run_paths import runs_database
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.orchestration.status.run_list import list_runs
from tests.support.recorded_runs import make_run, record, run_file, write_steps


def test_where_there_is_no_run_the_list_is_empty() -> None:
    assert list_runs() == []
    assert not runs_database().exists()


def test_runs_are_listed_the_newest_first() -> None:
    for run_id in ("r1", "r2"):
        file = run_file(run_id)
        make_run(run_id, phase=Phase.FINISHED, file=file)
        record((file, "finished"))
    assert [row["run_id"] for row in list_runs()] == ["r2", "r1"]


def test_a_row_tells_what_the_run_is() -> None:
    file = run_file("r1", ("a", "b"))
    places = make_run(file=file)
    write_steps(places, 12)
    record((file, "starting"))
    [row] = list_runs()
    expected = {
        "run_id": "r1",
        "status": "running",
        "environment": "a, b",
        "environments": ["a", "b"],
        "preset": "laptop",
        "step": 12,
        "total_steps": 100,
    }
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize("said", ["running", "starting", "stopping"])
def test_a_record_of_a_run_that_died_is_not_believed(said: str) -> None:
    file = run_file("r1")
    make_run(file=file, alive=False)
    record((file, said))
    assert list_runs()[0]["status"] == "interrupted"


def test_a_run_without_a_record_is_listed_too() -> None:
    make_run("r1")
    record((run_file("other"), "finished"))
    assert {row["run_id"]: row["status"] for row in list_runs()} == {"r1": "running", "other": "finished"}


def test_a_run_whose_folder_is_gone_does_not_run() -> None:
    record((run_file("r1"), "running"))
    [row] = list_runs()
    assert (row["status"], row["reason"]) == ("interrupted", "its folder is gone")


@pytest.mark.parametrize("name", ["r1 (copy)", ".removed-r1-0a1b"])
def test_a_folder_whose_name_is_no_id_is_not_a_run(name: str) -> None:
    folder = make_run("r1").folder
    folder.rename(folder.with_name(name))
    assert list_runs() == []


def test_a_damaged_run_is_listed_as_such() -> None:
    places = make_run()
    places.state.write_text("{")
    places.file.write_text(":")
    [row] = list_runs()
    assert (row["run_id"], row["status"]) == ("r1", "interrupted")


def test_records_that_are_no_database_leave_the_folders() -> None:
    make_run()
    runs_database().write_bytes(b"no database at all, and long enough to be looked at" * 50)
    assert [row["status"] for row in list_runs()] == ["running"]


def test_the_list_answers_while_another_process_writes() -> None:
    file = run_file("r1")
    make_run(file=file)
    record((file, "running"))
    other = sqlite3.connect(runs_database(), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        began = time.monotonic()
        assert [row["run_id"] for row in list_runs()] == ["r1"]
        assert time.monotonic() - began < 20
    finally:
        other.close()


def test_the_list_can_be_asked_for_beside_a_running_event_loop() -> None:
    file = run_file("r1")
    make_run(file=file)
    record((file, "running"))

    async def ask() -> int:
        return len(list_runs())

    assert asyncio.run(ask()) == 1


def test_two_hundred_runs_are_listed_each_as_it_is() -> None:
    phases = [Phase.FINISHED, Phase.STOPPED, Phase.FAILED, Phase.RUNNING]
    files = [run_file(f"run-{number:03}") for number in range(200)]
    for number, file in enumerate(files):
        make_run(file.run_id, phase=phases[number % 4], file=file)
    record(*((file, phases[number % 4]) for number, file in enumerate(files)))
    told = {row["run_id"]: row["status"] for row in list_runs()}
    assert told == {file.run_id: phases[number % 4].value for number, file in enumerate(files)}

"""Removing: what goes, what stays, and what a kill leaves."""

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.orchestration.cleanup import removal
from hermes_rl.orchestration.cleanup.plan import DiskItem, ItemKind
from hermes_rl.orchestration.cleanup.removal import remove_all
from hermes_rl.orchestration.cleanup.scan import find_disk_items
from hermes_rl.orchestration.run_paths import RunPaths, runs_database, runs_home
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.orchestration.status.run_list import list_runs
from hermes_rl.orchestration.supervision import start_run, stop_run
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, Role, RunPlan
from hermes_rl.training.engines.skyrl.paths import engines_home
from tests.support.recorded_runs import make_run, record, run_file

KILLED = """
import os, signal
from hermes_rl.orchestration.cleanup import removal
removal.delete = lambda path: os.kill(os.getpid(), signal.SIGKILL)
removal.remove_all(removal.find_disk_items())
"""


@pytest.fixture
def ended() -> Path:
    """The folder of a run that has finished, with a record."""
    file = run_file("r1")
    record((file, "finished"))
    return make_run("r1", phase=Phase.FINISHED, file=file).folder


def rows() -> list[str]:
    with sqlite3.connect(runs_database()) as database:
        found = [row[0] for row in database.execute("SELECT id FROM runs")]
    database.close()
    return found


def test_a_removed_run_is_gone_from_the_disk_and_from_the_list(ended: Path) -> None:
    make_run("r2")
    assert remove_all([item for item in find_disk_items() if item.name == "r1"]) == {}
    assert [path.name for path in runs_home().iterdir()] == ["r2"]
    assert [row["run_id"] for row in list_runs()] == ["r2"]
    assert rows() == []


def test_the_checkpoints_of_a_removed_run_go_too(ended: Path) -> None:
    (ended / "parts" / "engine").mkdir(parents=True)
    (engines_home() / "r1").mkdir(parents=True)
    (engines_home() / "r1.json").touch()
    remove_all(find_disk_items())
    assert list(engines_home().iterdir()) == []


def test_the_row_of_a_run_whose_folder_is_gone_can_be_removed() -> None:
    record((run_file("r1"), "finished"))
    assert remove_all(find_disk_items()) == {}
    assert list_runs() == []


def test_a_live_run_is_never_removed_also_when_it_is_asked_for() -> None:
    folder = make_run("r1").folder
    asked = DiskItem(ItemKind.RUN, "r1", (folder,))
    assert "running" in remove_all([asked])[str(folder)]
    assert [row["status"] for row in list_runs()] == ["running"]


def test_a_run_under_a_real_supervisor_stays_until_it_has_stopped() -> None:
    run = run_file("r1")
    sleeping = (sys.executable, "-c", "import time; time.sleep(600)")
    start_run(run, plan=RunPlan((ComponentPlan("trainer", Role.TRAINER, sleeping),)))
    process = RunPaths("r1").part("trainer") / "note.json"
    until(lambda: process.exists() and b'"process":{' in process.read_bytes().replace(b" ", b""))
    asked = DiskItem(ItemKind.RUN, "r1", (RunPaths("r1").folder,))
    assert remove_all([asked])
    stop_run("r1")
    until(lambda: not remove_all([asked]))
    assert list_runs() == []
    assert list(runs_home().iterdir()) == []


def until(done: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_run_that_was_resumed_after_the_last_look_stays(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = find_disk_items()
    monkeypatch.setattr(removal, "find_disk_items", lambda: chosen)
    make_run("r1", phase=Phase.RUNNING)
    assert remove_all(chosen)
    assert (ended / "run.yaml").exists()


def test_a_run_that_was_locked_after_the_last_look_stays(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = find_disk_items()
    monkeypatch.setattr(removal, "find_disk_items", lambda: chosen)
    with (ended / "supervisor.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is locked" in remove_all(chosen)[str(ended)]
    assert rows() == ["r1"]


def test_what_a_symbolic_link_in_a_run_leads_to_is_not_touched(ended: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (ended / "link").symlink_to(outside)
    assert remove_all(find_disk_items()) == {}
    assert [path.name for path in outside.iterdir()] == ["kept"]


def test_folders_that_forbid_writing_are_deleted(ended: Path) -> None:
    (ended / "closed").mkdir()
    (ended / "closed" / "file").touch()
    (ended / "closed").chmod(0o500)
    assert remove_all(find_disk_items()) == {}
    assert not list(runs_home().iterdir())


def test_a_kill_between_rename_and_delete_leaves_no_half_run(ended: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    assert not ended.exists()
    assert list_runs() == []


def test_the_next_removal_deletes_what_a_kill_left(ended: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED], check=False, env=os.environ)
    assert [item.kind for item in find_disk_items()] == [ItemKind.LEFTOVER]
    assert remove_all(find_disk_items()) == {}
    assert not list(runs_home().iterdir())


def test_a_row_that_cannot_be_deleted_at_first_is_deleted_when_there_is_room(
    ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_database().rename(aside := runs_database().with_name("aside"))
    runs_database().mkdir()

    def make_room(path: Path) -> None:
        runs_database().rmdir()
        aside.rename(runs_database())

    monkeypatch.setattr(removal, "delete", make_room)
    assert remove_all(find_disk_items()) == {}
    assert rows() == []


def test_two_do_not_remove_at_once(ended: Path) -> None:
    folder = os.open(rl_home(), os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another `hermes-rl clean`"):
        remove_all(find_disk_items())
    os.close(folder)
    assert ended.exists()

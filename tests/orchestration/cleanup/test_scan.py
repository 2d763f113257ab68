"""What is found in a home, and what has a reason to be kept."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes_rl.agent.harnesses.installer import agents_home
from hermes_rl.core.paths import images_home, rl_home
from hermes_rl.orchestration.cleanup.plan import DiskItem, ItemKind
from hermes_rl.orchestration.cleanup.scan import REMOVED, find_disk_items
from hermes_rl.orchestration.run_paths import RunPaths, logs_home, runs_home
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.training.engines.skyrl.paths import engines_home
from hermes_rl.viewer.index.schema import indexes_home
from tests.sandbox.small_root import make_small_root
from tests.support.recorded_runs import make_run, record, run_file


def found(kind: ItemKind, name: str | None = None) -> DiskItem:
    [item] = [item for item in find_disk_items() if item.kind is kind and name in {None, item.name}]
    return item


@contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def folder_with(path: Path, *files: str) -> Path:
    path.mkdir(parents=True)
    for name in files:
        (path / name).touch()
    return path


def trained(name: str, state: str) -> Path:
    folder = folder_with(runs_home() / name, "lineage.jsonl")
    (folder / "run.json").write_text(json.dumps({"state": state}))
    return folder


def test_where_there_is_nothing_nothing_is_found(home: Path) -> None:
    assert find_disk_items() == []
    assert not home.exists()


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING, Phase.STOPPING])
def test_a_live_run_is_kept(phase: Phase) -> None:
    make_run(phase=phase)
    assert str(phase) in (found(ItemKind.RUN).keep or "")


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.FINISHED, Phase.FAILED])
def test_a_run_that_has_ended_may_go(phase: Phase) -> None:
    make_run(phase=phase)
    item = found(ItemKind.RUN)
    assert (item.keep, item.note) == (None, phase)


def test_an_interrupted_run_is_kept_with_the_command_that_ends_it() -> None:
    make_run("r1", alive=False)
    assert "hermes-rl run stop r1" in (found(ItemKind.RUN).keep or "")


def test_a_run_whose_state_cannot_be_read_is_kept() -> None:
    make_run(phase=Phase.FINISHED).state.write_text("{")
    assert found(ItemKind.RUN).keep


def test_an_ended_run_whose_supervisor_still_has_its_lock_is_kept() -> None:
    places = make_run(phase=Phase.FINISHED)
    with locked(places.lock):
        assert found(ItemKind.RUN).keep


def test_an_ended_run_with_a_process_left_is_kept() -> None:
    places = make_run(phase=Phase.FINISHED)
    words = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", str(places.part("env"))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as left:
        assert left.stdout
        left.stdout.readline()
        assert "in use by" in (found(ItemKind.RUN).keep or "")
        left.communicate()


def test_a_run_that_is_a_symbolic_link_is_kept(tmp_path: Path) -> None:
    places = make_run(phase=Phase.FINISHED)
    places.folder.rename(tmp_path / "elsewhere")
    places.folder.symlink_to(tmp_path / "elsewhere")
    assert "symbolic link" in (found(ItemKind.RUN).keep or "")


def test_a_run_that_only_has_a_record_is_found() -> None:
    record((run_file("r1"), "finished"))
    assert found(ItemKind.RUN).note == "its folder is gone"


@pytest.mark.parametrize(("state", "kept"), [("running", True), ("complete", False), ("failed", False)])
def test_a_folder_of_the_trainer_alone_goes_when_it_has_ended(state: str, kept: bool) -> None:
    trained("words", state)
    assert bool(found(ItemKind.RUN).keep) is kept


def test_a_folder_that_a_trainer_has_taken_is_kept() -> None:
    with locked(trained("words", "complete") / "lineage.jsonl"):
        assert found(ItemKind.RUN).keep


def test_a_folder_in_which_nothing_began_is_kept_while_it_is_new() -> None:
    folder = folder_with(runs_home() / "r1")
    assert found(ItemKind.RUN).keep
    os.utime(folder, (0, 0))
    assert found(ItemKind.RUN).keep is None


def test_the_checkpoints_of_a_run_with_an_engine_are_part_of_it() -> None:
    make_run("r1", phase=Phase.FINISHED).part("engine").mkdir(parents=True)
    folder = folder_with(engines_home() / "r1", "tinker.db")
    (engines_home() / "r1.json").touch()
    assert folder in found(ItemKind.RUN).paths
    assert [item for item in find_disk_items() if item.kind is ItemKind.ENGINE] == []


def test_the_engine_of_a_run_whose_lock_is_held_keeps_it() -> None:
    make_run("r1", phase=Phase.FINISHED).part("engine").mkdir(parents=True)
    with locked(engines_home() / "r1" / "lock"):
        assert found(ItemKind.RUN).keep


def test_the_checkpoints_of_an_engine_that_only_has_the_name_of_a_run_are_not_part_of_it() -> None:
    folder = trained("default", "complete")
    folder_with(engines_home() / "default", "tinker.db")
    assert found(ItemKind.RUN).paths == (folder,)
    assert found(ItemKind.ENGINE).name == "default"


def test_the_checkpoints_of_an_engine_that_runs_are_kept() -> None:
    folder = folder_with(engines_home() / "default", "tinker.db")
    assert found(ItemKind.ENGINE).keep is None
    with locked(folder / "lock"):
        assert found(ItemKind.ENGINE).keep


def test_an_engine_environment_that_is_being_made_is_kept() -> None:
    folder_with(engines_home() / "skyrl-1")
    assert (found(ItemKind.ENGINE).note, found(ItemKind.ENGINE).keep) == ("incomplete", None)
    with locked(engines_home() / "skyrl-1.lock"):
        assert found(ItemKind.ENGINE).keep


def test_an_engine_environment_that_a_process_uses_is_kept() -> None:
    python = folder_with(engines_home() / "skyrl-1" / "bin") / "python"
    python.symlink_to(sys.executable)
    program = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([python, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout
        engine.stdout.readline()
        assert f"(process {engine.pid})" in (found(ItemKind.ENGINE).keep or "")
        engine.communicate()
    assert found(ItemKind.ENGINE).keep is None


async def test_an_image_is_kept_while_a_sandbox_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The user of a sandbox has to enter it, and pytest's own folders are closed.
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        place.chmod(0o755)
        monkeypatch.setenv("HERMES_HOME", str(place / "home"))
        archive = place / "root.tar"
        subprocess.run(["tar", "-C", make_small_root(place / "root"), "-cf", archive, "."], check=True)
        backend = BubblewrapBackend()
        async with await backend.start(SandboxSpec(image=str(archive))):
            assert "in use by" in (found(ItemKind.IMAGE).keep or "")
        await backend.close()
        assert found(ItemKind.IMAGE).keep is None


def test_an_image_that_is_being_prepared_is_kept() -> None:
    folder_with(images_home() / "unpacked" / "abc.part")
    with locked(images_home() / "unpacked" / "abc.lock"):
        assert found(ItemKind.IMAGE).keep
    assert (found(ItemKind.IMAGE).keep, found(ItemKind.IMAGE).note) == (None, "incomplete")


def test_what_can_be_made_again_is_a_cache() -> None:
    homes = [
        indexes_home(),
        rl_home() / "judgements",
        engines_home() / "compiled" / "key",
        agents_home() / "codex-1",
    ]
    for folder in homes:
        folder_with(folder)
    caches = {item.paths[0] for item in find_disk_items() if item.kind is ItemKind.CACHE and not item.keep}
    assert caches == set(homes)


def test_the_logs_of_a_run_are_found_by_its_id() -> None:
    make_run("my_run", phase=Phase.FINISHED)
    folder_with(logs_home(), "api_my_run.log", "env-terminal_test_my_run.log.1", "api_0123abcd.log")
    names = {item.name: len(item.paths) for item in find_disk_items() if item.kind is ItemKind.LOGS}
    assert names == {"my_run": 2, "0123abcd": 1}


def test_the_logs_of_a_live_run_are_kept() -> None:
    make_run("r1")
    folder_with(logs_home(), "api_r1.log")
    assert found(ItemKind.LOGS).keep


@pytest.mark.parametrize("name", ["evals", "spool", "trajectories.db"])
def test_results_are_listed_and_always_kept(name: str) -> None:
    folder_with(rl_home() / name)
    assert found(ItemKind.DATA).keep


def test_environments_of_ci_are_kept_while_it_runs(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "hermes-rl-ci"
    folder_with(cache / "0123456789abcdef", "complete")
    assert found(ItemKind.CI).keep is None
    with locked(cache / "lock"):
        assert found(ItemKind.CI).keep


def test_what_a_killed_removal_left_is_found() -> None:
    make_run("r1", phase=Phase.FINISHED)
    RunPaths("r1").folder.rename(runs_home() / f"{REMOVED}r1-0a1b")
    assert [item.kind for item in find_disk_items()] == [ItemKind.LEFTOVER]

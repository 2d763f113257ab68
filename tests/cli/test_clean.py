"""`hermes-rl clean` as a person and as a program meet it."""

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.paths import images_home, rl_home
from hermes_rl.orchestration.run_paths import logs_home, runs_home
from hermes_rl.orchestration.run_state import Phase
from tests.cli.test_command import hermes_rl
from tests.support.recorded_runs import make_run, record, run_file

DAY = 86_400


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two runs that have ended, a month apart, one that lives, an image, and the groups of a spool."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for engine in ("DOCKER_HOST", "CONTAINER_HOST"):
        monkeypatch.setenv(engine, f"unix://{tmp_path}/no.sock")
    for name, phase in (("old", Phase.FINISHED), ("new", Phase.STOPPED), ("live", Phase.RUNNING)):
        file = run_file(name)
        record((file, phase))
        make_run(name, phase=phase, file=file)
    logs_home().mkdir(parents=True)
    (logs_home() / "api_old.log").touch()
    (images_home() / "unpacked" / "abc").mkdir(parents=True)
    (rl_home() / "spool").mkdir()
    month_ago = time.time() - 30 * DAY
    for path in (*(runs_home() / "old").rglob("*"), runs_home() / "old"):
        os.utime(path, (month_ago, month_ago))


def runs() -> set[str]:
    return {path.name for path in runs_home().iterdir()}


def told(*arguments: str) -> dict[str, Any]:
    done = hermes_rl("clean", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_without_flags_it_lists_and_removes_nothing() -> None:
    done = hermes_rl("clean")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("old", "finished", "live", "running", "abc", "spool", "total"))
    assert "hermes-rl clean --remove" in done.stdout
    assert runs() == {"old", "new", "live"}


def test_json_tells_each_item_and_the_totals_by_kind() -> None:
    answer = told()
    assert set(answer) == {"items", "totals", "bytes", "removable_bytes"}
    assert all(set(item) == {"kind", "name", "path", "bytes", "last_used", "note", "keep"} for item in answer["items"])
    assert set(answer["totals"]) == {"run", "image", "logs", "data"}
    assert answer["totals"]["run"]["items"] == 3
    assert answer["bytes"] == sum(total["bytes"] for total in answer["totals"].values())


def test_the_list_can_be_narrowed() -> None:
    assert [item["name"] for item in told("--kind", "run", "--older-than", "14d")["items"]] == ["old"]


def test_without_a_terminal_removing_needs_yes() -> None:
    done = hermes_rl("clean", "--remove", "--kind", "run")
    assert done.returncode == 2
    assert "cannot ask for confirmation without a terminal; pass --yes" in done.stderr
    assert runs() == {"old", "new", "live"}


def test_with_yes_what_was_selected_goes_and_a_live_run_stays() -> None:
    done = hermes_rl("clean", "--remove", "--kind", "run", "--yes")
    assert (done.returncode, runs()) == (0, {"live"})
    assert "keeping run live: running" in done.stderr


def test_only_older_runs_go() -> None:
    hermes_rl("clean", "--remove", "--kind", "run", "--older-than", "14d", "--yes")
    assert runs() == {"new", "live"}


def test_a_removed_run_is_not_listed_any_more() -> None:
    hermes_rl("clean", "--remove", "old", "--yes")
    listed = json.loads(hermes_rl("run", "list", "--json").stdout)
    assert {run["run_id"] for run in listed} == {"new", "live"}


def test_a_run_can_be_named_by_its_path_as_a_shell_completes_it() -> None:
    done = hermes_rl("clean", "--remove", "old/", "--yes", cwd=runs_home())
    assert (done.returncode, runs()) == (0, {"new", "live"})


def test_a_program_is_told_what_was_removed() -> None:
    answer = told("--remove", "old", "--yes")
    assert answer["removed"] == [str(runs_home() / "old"), str(logs_home() / "api_old.log")]
    assert answer["failed"] == {}


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", {"old", "new", "live"}), (b"y\n", {"new", "live"})])
def test_on_a_terminal_it_asks(answer: bytes, left: set[str]) -> None:
    controller, terminal = pty.openpty()
    os.write(controller, answer)
    command = [sys.executable, "-m", "hermes_rl", "clean", "--remove", "old"]
    subprocess.run(command, stdin=terminal, capture_output=True, check=False, timeout=100)
    os.close(terminal)
    os.close(controller)
    assert runs() == left


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--remove", "--yes"), "needs a NAME, --kind or --older-than"),
        (("--remove", "nothing", "--yes"), "no item named nothing"),
        (("--older-than", "14"), "such as 12h, 14d or 4w"),
    ],
)
def test_a_wrong_call_says_the_next_step(arguments: tuple[str, ...], said: str) -> None:
    done = hermes_rl("clean", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert runs() == {"old", "new", "live"}


def test_naming_a_run_that_lives_fails_with_the_command_that_stops_it() -> None:
    done = hermes_rl("clean", "--remove", "live", "--yes")
    assert done.returncode == 1
    assert "hermes-rl run stop live" in done.stderr
    assert runs() == {"old", "new", "live"}


def test_results_are_never_removed() -> None:
    hermes_rl("clean", "--remove", "--older-than", "0h", "--yes")
    assert (rl_home() / "spool").exists()
    assert runs() == {"live"}

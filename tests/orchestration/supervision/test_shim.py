"""A keeper and its part, as real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import read_atomic_json, write_atomic_json
from hermes_rl.orchestration.supervision.process_tags import (
    LAUNCH_FILE,
    TAG_VARIABLE,
    shim_status_path,
    tagged_processes,
    untagged_environ,
)

Kept = Callable[..., "Keeping"]


class Keeping:
    def __init__(self, run: Path, program: str, life: str, stop_within: float) -> None:
        self.folder, self.log = run / "parts" / "api", run / "api.log"
        self.folder.mkdir(parents=True, exist_ok=True)
        order: dict[str, Any] = {
            "life": "one",
            "command": [sys.executable, "-c", program],
            "cwd": str(run),
            "log": str(self.log),
            "log_bytes": 1000,
            "log_files": 2,
            "keys": ["A_KEY"],
            "stop_within": stop_within,
            # Stands for a supervisor that leaves whoever starts it.
            "supervisor": ["touch", str(run / "supervisor-started")],
        }
        write_atomic_json(self.folder / LAUNCH_FILE, order)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hermes_rl.orchestration.supervision.shim", str(self.folder), life],
            env={**untagged_environ(), TAG_VARIABLE: str(self.folder), "A_KEY": "tml-secret-of-the-test"},
            start_new_session=True,
        )

    def note(self) -> dict[str, Any]:
        return read_atomic_json(shim_status_path(self.folder)) or {}

    def part(self) -> ProcessIdentity:
        return ProcessIdentity(**await_true(lambda: self.note().get("process")))

    def left(self) -> list[int]:
        return tagged_processes(self.folder)


def await_true(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (found := what()):
        assert time.monotonic() < deadline, "not within 30 s"
        time.sleep(0.02)
    return found


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    keepers: list[Keeping] = []

    def keep(program: str, *, life: str = "one", stop_within: float = 20.0) -> Keeping:
        keepers.append(Keeping(tmp_path, program, life, stop_within))
        return keepers[-1]

    yield keep
    for keeper in keepers:
        for pid in keeper.left():
            # It may end by itself just now.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        keeper.process.kill()
        keeper.process.wait()


FAMILY = """
import subprocess, sys, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("ready", flush=True)
"""
FOREVER = FAMILY + "time.sleep(1000)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + FOREVER


def ready(keeper: Keeping) -> None:
    await_true(lambda: keeper.log.exists() and "ready" in keeper.log.read_text())


def test_the_exit_status_is_noted_and_the_output_logged(kept: Kept) -> None:
    keeper = kept("print('hello'); raise SystemExit(7)")
    assert keeper.process.wait(30) == 0
    assert keeper.note()["exit_code"] == 7
    assert keeper.log.read_text() == "hello\n"


def test_a_key_that_the_part_prints_is_not_in_its_log(kept: Kept) -> None:
    keeper = kept("import os; print('key', os.environ['A_KEY'])")
    keeper.process.wait(30)
    assert keeper.log.read_text() == "key **********\n"


def test_a_stored_key_that_the_part_prints_is_not_in_its_log(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MY_JUDGE_KEY=sk-of-the-project\nMODE=very-verbose\n")
    keeper = kept("print('sk-of-the-project very-verbose')")
    keeper.process.wait(30)
    assert keeper.log.read_text() == "********** very-verbose\n"


def test_a_signal_that_ended_the_part_is_noted(kept: Kept) -> None:
    keeper = kept(FOREVER)
    keeper.part().signal(signal.SIGKILL)
    keeper.process.wait(30)
    assert keeper.note()["exit_code"] == -signal.SIGKILL


def test_what_a_part_left_in_a_session_of_its_own_is_ended_with_it(kept: Kept) -> None:
    keeper = kept(FAMILY)
    keeper.process.wait(30)
    assert keeper.note()["exit_code"] == 0
    assert not keeper.left()


def test_a_keeper_that_is_told_ends_its_part(kept: Kept) -> None:
    keeper = kept(FOREVER)
    ready(keeper)
    keeper.process.terminate()
    keeper.process.wait(30)
    assert keeper.note()["exit_code"] == -signal.SIGTERM
    assert not keeper.left()


def test_a_part_that_does_not_end_is_killed_by_its_deadline(kept: Kept) -> None:
    keeper = kept(STUBBORN, stop_within=0.5)
    ready(keeper)
    keeper.process.terminate()
    keeper.process.wait(30)
    assert keeper.note()["exit_code"] == -signal.SIGKILL
    assert not keeper.left()


def test_nothing_outlives_a_killed_keeper(kept: Kept) -> None:
    keeper = kept(FOREVER)
    ready(keeper)
    keeper.process.kill()
    keeper.process.wait(30)
    await_true(lambda: not keeper.left())


def test_nothing_outlives_a_killed_guard(kept: Kept) -> None:
    keeper = kept(FOREVER)
    ready(keeper)
    part = keeper.part()
    [guard] = [pid for pid in keeper.left() if pid != part.pid and _parent(part.pid) == pid]
    os.kill(guard, signal.SIGKILL)
    keeper.process.wait(30)
    assert not keeper.left()
    assert keeper.note()["exit_code"] == -signal.SIGKILL


def test_two_keepers_of_one_part_never_run_at_once(kept: Kept) -> None:
    first = kept(FOREVER)
    ready(first)
    second = kept(FOREVER)
    assert second.process.wait(30) != 0
    assert first.part().alive()


def test_a_keeper_of_an_earlier_order_starts_nothing(kept: Kept) -> None:
    keeper = kept(FOREVER, life="another")
    assert keeper.process.wait(30) != 0
    assert not keeper.note()


def test_a_command_that_is_not_there_is_told_in_the_log(kept: Kept, tmp_path: Path) -> None:
    keeper = kept("")
    keeper.process.wait(30)
    order = read_atomic_json(keeper.folder / LAUNCH_FILE) or {}
    write_atomic_json(keeper.folder / LAUNCH_FILE, {**order, "command": ["/no/such/program"]})
    again = subprocess.run(
        [sys.executable, "-m", "hermes_rl.orchestration.supervision.shim", str(keeper.folder), "one"],
        check=False,
        timeout=30,
    )
    assert again.returncode == 0
    assert "could not be started" in keeper.log.read_text()
    assert keeper.note()["exit_code"] == 75


def test_a_keeper_without_a_supervisor_starts_one(kept: Kept, tmp_path: Path) -> None:
    kept(FOREVER)
    await_true((tmp_path / "supervisor-started").exists)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

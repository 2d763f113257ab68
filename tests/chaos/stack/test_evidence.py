"""The evidence of a small history in a real store and lineage, whole and with faults planted in it."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.chaos.stack.evidence import gathered
from tests.chaos.stack.grounds import others
from tests.chaos.stack.planted import FINISHED, PLANTS, STEPS, WORTH, write_history
from tests.chaos.stack.verdict import Verdict, judged


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    write_history(tmp_path / "run", tmp_path / "run" / "spool")
    return tmp_path / "run"


def verdict_of(folder: Path, *, seen: tuple[int, ...] = (0, 1, 2, 3)) -> Verdict:
    return judged(gathered(folder, FINISHED, STEPS, seen=seen, spool=folder / "spool", processes={}))


def test_a_history_that_kept_the_promises_has_no_breach(history: Path) -> None:
    assert verdict_of(history).breaches == []


def test_the_rollouts_that_failed_are_counted_and_have_no_score(history: Path) -> None:
    rollouts = gathered(history, FINISHED, STEPS, seen=(), spool=history / "spool", processes={}).rollouts
    assert [one.score for one in rollouts] == [WORTH, WORTH, None] * 4


@pytest.mark.parametrize("planted", PLANTS)
def test_a_planted_fault_is_found(history: Path, planted: str) -> None:
    plant, promise, breaches = PLANTS[planted]
    plant(history)
    assert len(getattr(verdict_of(history), promise)) == breaches


def test_a_group_that_the_witness_saw_and_nobody_has_is_lost(history: Path) -> None:
    assert verdict_of(history, seen=(0, 1, 2, 3, 4)).lost == ["finished, and nowhere 4"]


def test_a_group_that_waits_in_the_spool_is_not_lost(history: Path) -> None:
    (history / "spool" / "000000000009-4.group").touch()
    assert verdict_of(history, seen=(0, 1, 2, 3, 4)).lost == []


def test_a_process_that_lives_on_is_found_and_one_that_has_ended_is_not() -> None:
    with subprocess.Popen(["sleep", "60"]) as left:
        try:
            # The kernel shows no command for a moment while a program is being loaded.
            deadline = time.monotonic() + 10
            while not others([left.pid]) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert others([left.pid]) == {left.pid: "sleep 60"}
        finally:
            left.kill()
        os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)
        # Its remains are there until somebody asks how it ended.
        assert others([left.pid]) == {}

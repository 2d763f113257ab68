"""A sample of the matrix of scripts/run_faults.py, the same in every CI run; and two runs on one machine."""

import os
from pathlib import Path

import pytest

from hermes_rl.orchestration.run_state import Phase
from hermes_rl.orchestration.supervision.commands import stop_run
from tests.chaos.runs.faults import Cell, matrix, run_cell, sample
from tests.chaos.runs.stage import Stage
from tests.support.long_suites import in_the_gate

CELLS = 10
SEED = 9


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cell", in_the_gate(sample(CELLS, SEED), 3), ids=str)
def test_a_fault_leaves_a_true_status_a_run_that_goes_on_and_no_process(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    if cell.fault == "fill the disk under" and os.geteuid() != 0:
        pytest.skip("only root can mount a small disk to fill")
    assert run_cell(cell, tmp_path / "home").breach is None


def test_the_matrix_has_every_target_at_every_moment() -> None:
    cells = matrix()
    assert len(cells) == len(set(cells)) > 75
    assert {cell.target for cell in cells if cell.fault == "kill" and cell.moment == "running"} >= {
        "supervisor", "keeper engine", "keeper api", "keeper trainer", "keeper env", "part engine", "part api",
        "part trainer", "part env", "everything",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_runs_at_once_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    one, other = (Stage(name, {"trainer": {"steps": 3, "seconds": 0.05}}) for name in ("one", "other"))
    try:
        one.hold()
        other.hold()
        one.start()
        other.start()
        states = [stage.await_phase(Phase.RUNNING) for stage in (one, other)]
        urls = [part.url for state in states for part in state.parts.values() if part.url]
        assert len(urls) == len(set(urls))
        stop_run("one")
        one.await_phase(Phase.STOPPED)
        one.await_nothing_left()
        other.release()
        other.await_phase(Phase.FINISHED)
    finally:
        one.kill_all()
        other.kill_all()

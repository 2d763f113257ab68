from dataclasses import replace
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.checkpoints import Checkpoint, Lineage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lineage.jsonl"


def checkpoint(step: int, *batches: int, final: bool = False) -> Checkpoint:
    return Checkpoint(step, step, batches, f"state-{step}", f"sampler-{step}", final=final)


def test_what_was_kept_is_there_again(path: Path) -> None:
    kept = [checkpoint(0), checkpoint(1, 5), checkpoint(2, 6, 7)]
    lineage = Lineage(path)
    for one in kept:
        lineage.add(one)
    assert Lineage(path).checkpoints == kept
    assert Lineage(path).batches == {5, 6, 7}


def test_a_line_that_a_crash_tore_is_cut_off(path: Path) -> None:
    Lineage(path).add(checkpoint(1, 5))
    with path.open("ab") as file:
        file.write(b'{"step":2,"vers')
    lineage = Lineage(path)
    lineage.add(checkpoint(2, 6))
    assert [one.step for one in Lineage(path).checkpoints] == [1, 2]


def test_no_batch_is_learned_from_twice(path: Path) -> None:
    lineage = Lineage(path)
    lineage.add(checkpoint(1, 5))
    with pytest.raises(ValueError, match="5"):
        lineage.add(checkpoint(2, 5))


def test_steps_never_go_back(path: Path) -> None:
    lineage = Lineage(path)
    lineage.add(checkpoint(2))
    with pytest.raises(ValueError, match="cannot follow"):
        lineage.add(checkpoint(1))


def test_the_newest_are_kept_and_the_final_ones(path: Path) -> None:
    lineage = Lineage(path)
    for one in (*map(checkpoint, range(5)), checkpoint(4, final=True)):
        lineage.add(one)
    assert [one.step for one in lineage.surplus(2)] == [0, 1, 2]


def test_steps_that_left_the_weights_share_a_checkpoint(path: Path) -> None:
    lineage = Lineage(path)
    for one in (checkpoint(1), checkpoint(2), replace(checkpoint(2), step=3), replace(checkpoint(2), step=4)):
        lineage.add(one)
    assert lineage.surplus(2) == []
    assert [one.step for one in lineage.surplus(1)] == [1]
    lineage.add(checkpoint(5))
    assert [one.step for one in lineage.surplus(1)] == [1, 2, 3, 4]


def test_final_weights_stay_when_a_later_step_shares_them(path: Path) -> None:
    lineage = Lineage(path)
    for one in (checkpoint(1, final=True), replace(checkpoint(1), step=2), checkpoint(3)):
        lineage.add(one)
    assert lineage.surplus(1) == []


def test_what_was_deleted_is_no_surplus(path: Path) -> None:
    lineage = Lineage(path)
    for step in range(4):
        lineage.add(checkpoint(step))
    lineage.mark_deleted(checkpoint(0))
    assert [one.step for one in Lineage(path).surplus(2)] == [1]


def test_a_file_of_something_else_is_refused(path: Path) -> None:
    path.write_text("hello\n")
    with pytest.raises(ConfigError, match="--run"):
        Lineage(path)

"""A metrics file that is looked at again and again: what is new is read, and what is kept is bounded."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.sinks import tail
from hermes_rl.sinks.metrics_file import read_metrics
from hermes_rl.sinks.tail import MetricsTail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def add(path: Path, *steps: int, **metrics: Any) -> None:
    with path.open("a") as file:
        for step in steps:
            file.write(json.dumps({"time": step + 0.5, "step": step, "loss": step / 10, **metrics}) + "\n")


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["step"] for row in rows]


def spoil_the_beginning(path: Path) -> None:
    """Whoever reads it again stumbles."""
    with path.open("r+b") as file:
        file.write(b"X")


def test_the_first_look_is_what_reading_the_file_gives(path: Path) -> None:
    add(path, 1, 2, 3, 3, 5)
    add(path, 2, resumed=True)
    add(path, 3, other=1)
    assert MetricsTail().rows(path) == read_metrics(path)


def test_a_later_look_reads_only_what_is_new(path: Path) -> None:
    followed = MetricsTail()
    add(path, *range(1, 50))
    followed.rows(path)
    spoil_the_beginning(path)
    add(path, 50)
    assert numbers(followed.rows(path)) == list(range(1, 51))


def test_a_torn_line_is_read_once_it_is_whole(path: Path) -> None:
    followed = MetricsTail()
    path.write_text('{"step": 1}\n{"st')
    assert numbers(followed.rows(path)) == [1]
    with path.open("a") as file:
        file.write('ep": 2}\n')
    assert numbers(followed.rows(path)) == [1, 2]


def test_lines_of_one_step_are_one_also_across_looks(path: Path) -> None:
    followed = MetricsTail()
    add(path, 1)
    before = followed.rows(path)
    add(path, 1, other=2)
    assert followed.rows(path) == [{"time": 1.5, "step": 1, "loss": 0.1, "other": 2}]
    assert "other" not in before[0]


def test_steps_that_a_resumed_run_takes_again_are_superseded(path: Path) -> None:
    followed = MetricsTail()
    add(path, *range(1, 6))
    followed.rows(path)
    add(path, 3, loss=7.0)
    assert [(row["step"], row["loss"]) for row in followed.rows(path)] == [(1, 0.1), (2, 0.2), (3, 7.0)]


def test_a_file_that_was_cut_is_read_anew(path: Path) -> None:
    followed = MetricsTail()
    add(path, 1, 2, 3)
    followed.rows(path)
    path.write_text("")
    add(path, 7)
    assert numbers(followed.rows(path)) == [7]


@pytest.mark.parametrize("in_place", [True, False])
def test_another_file_in_its_place_is_read_anew(path: Path, in_place: bool) -> None:
    followed = MetricsTail()
    add(path, 1, 2, 3)
    followed.rows(path)
    other = path.with_name("other")
    add(other, *range(10, 20))
    if in_place:
        path.write_bytes(other.read_bytes())
    else:
        other.replace(path)
    assert numbers(followed.rows(path)) == list(range(10, 20))


def test_a_file_that_is_gone_is_told_and_comes_back(path: Path) -> None:
    followed = MetricsTail()
    add(path, 1)
    followed.rows(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        followed.rows(path)
    add(path, 4)
    assert numbers(followed.rows(path)) == [4]


def test_a_line_that_holds_no_metrics_is_named_at_every_look(path: Path) -> None:
    followed = MetricsTail()
    add(path, 1)
    followed.rows(path)
    with path.open("a") as file:
        file.write("nonsense\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="line 2 is not a metrics line"):
            followed.rows(path)


def test_a_line_without_an_end_is_not_held_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_LINE_BYTES", 100)
    path.write_text("x" * 1_000)
    with pytest.raises(ConfigError, match="more than 100 bytes"):
        MetricsTail().rows(path)


class TestALongRun:
    STEPS = 5_000

    @pytest.fixture
    def steps(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> tail.MetricRows:
        monkeypatch.setattr(tail, "MAX_VALUES", 1_000)
        followed = MetricsTail()
        add(path, 1, rare=1.0)
        for first in range(2, self.STEPS, 700):
            add(path, *range(first, min(first + 700, self.STEPS + 1)))
            followed.steps(path)
        return followed.steps(path)

    def test_what_is_kept_is_bounded(self, steps: tail.MetricRows) -> None:
        assert sum(map(len, steps.rows)) <= 1_000

    def test_its_newest_steps_are_all_there(self, steps: tail.MetricRows) -> None:
        assert numbers(steps.rows)[-tail.RECENT_STEPS :] == list(
            range(self.STEPS - tail.RECENT_STEPS + 1, self.STEPS + 1)
        )

    def test_of_each_name_the_newest_value_is_there(self, steps: tail.MetricRows) -> None:
        assert [row["rare"] for row in steps.rows if "rare" in row] == [1.0]

    def test_its_curve_is_evenly_spaced_up_to_the_newest_step(self, steps: tail.MetricRows) -> None:
        spaced = numbers(steps.spaced)
        assert steps.every in {16, 32, 64}
        assert {after - before for before, after in pairwise(spaced[:-1])} == {steps.every}
        assert (spaced[0], spaced[-1]) == (1, self.STEPS)


def test_text_is_not_kept(path: Path) -> None:
    add(path, 1, note="x" * 1_000, sure=True)
    assert MetricsTail().rows(path) == [{"time": 1.5, "step": 1, "loss": 0.1}]


def test_names_without_end_are_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_NAMES", 10)
    for step in range(100):
        add(path, step, **{f"name-{step}": 1.0})
    assert len({name for row in MetricsTail().rows(path) for name in row}) == 10


def test_of_many_files_those_looked_at_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_TOTAL_VALUES", 50)
    followed = MetricsTail()
    for name in ("first", "second", "third"):
        add(tmp_path / name, *range(8))
        followed.rows(tmp_path / name)
    for name in ("first", "second", "third"):
        spoil_the_beginning(tmp_path / name)
    assert len(followed.rows(tmp_path / "third")) == 8
    assert len(followed.rows(tmp_path / "second")) == 8
    with pytest.raises(ConfigError):
        followed.rows(tmp_path / "first")

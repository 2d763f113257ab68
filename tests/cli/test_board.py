"""`hermes-rl board`: evaluations over time with their paired changes, as a page and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.cli.board import board
from hermes_rl.console.run_command import run_click
from tests.cli.test_compare import ITEMS, changed, evaluation


def shown(*arguments: str | Path) -> int:
    return run_click(board, [str(argument) for argument in arguments], prog_name="board")


async def evaluations(folder: Path, *passed: int, **config: Any) -> None:
    """One evaluation a day, in which so many of the items pass."""
    for day, count in enumerate(passed, 1):
        one = await evaluation(folder / f"run-{day}", *[1] * count, *[0] * (ITEMS - count), **config)

        def at(report: dict[str, Any], day: int = day) -> None:
            report["finished_at"] = f"2026-11-{day:02}T12:00:00+00:00"

        changed(one, at)


async def test_a_regression_of_the_newest_evaluation_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await evaluations(tmp_path, 8, 8, 0)
    capsys.readouterr()
    assert shown(tmp_path, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    (series,) = found["series"]
    assert [one["mean"] for one in series["evaluations"]] == [1.0, 1.0, 0.0]
    assert [one["regression"] for one in series["evaluations"]] == [False, False, True]
    # Eight losses and no win: 2 / 2^8.
    assert series["evaluations"][2]["p_value"] == pytest.approx(2 / 2**8)
    page = Path(found["page"]).read_text()
    assert "1 regression in the newest evaluations" in page
    assert "<script" not in page and "http" not in page.replace("https://www.w3.org", "")


async def test_an_old_regression_that_was_fixed_is_shown_and_does_not_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await evaluations(tmp_path, 8, 0, 8)
    assert shown(tmp_path, "--output", tmp_path / "page.html", "--json") == 0
    (series,) = json.loads(capsys.readouterr().out)["series"]
    assert [(one["regression"], one["improvement"]) for one in series["evaluations"]] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    assert (tmp_path / "page.html").exists()


async def test_other_decoding_is_another_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await evaluations(tmp_path / "one", 8)
    await evaluations(tmp_path / "four", 0, eval_samples=4)
    assert shown(tmp_path, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["series"]) == 2


async def test_what_cannot_be_read_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.json").write_text("{}")
    assert shown(tmp_path) == 2
    assert "hermes-rl evaluate" in capsys.readouterr().err
    await evaluations(tmp_path, 8)
    assert shown(tmp_path) == 0
    assert "left out" in capsys.readouterr().err

"""`hermes-rl engine` as far as no engine is needed; with a real one: tests/engines/skyrl."""

import json
from pathlib import Path

import pytest

from hermes_rl.cli.main import hermes_rl
from hermes_rl.console.run_command import run_click
from hermes_rl.training.engines.skyrl.paths import engines_home
from hermes_rl.training.engines.skyrl.record import EngineRecord


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))


def engine(*words: str) -> int:
    return run_click(hermes_rl, ["engine", *words], prog_name="hermes-rl")


def record(log: Path) -> None:
    engines_home().mkdir(parents=True)
    EngineRecord("one", 1, "at another moment", 4321, "/model", str(log)).write()


def test_a_model_that_is_not_there_is_refused_before_anything_is_installed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert engine("start", "--model", "/no/where") == 2
    assert "neither a folder nor" in capsys.readouterr().err
    assert not engines_home().exists()


def test_an_engine_that_was_never_started_cannot_be_stopped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record(tmp_path / "log")
    assert engine("stop", "other") == 2
    assert "no engine 'other'; known engines: one" in capsys.readouterr().err


def test_stopping_one_that_has_ended_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record(tmp_path / "log")
    assert engine("stop", "one") == 0
    assert "was not running" in capsys.readouterr().err


def test_status_without_any_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine("status") == 0
    assert "hermes-rl engine start --model FOLDER" in capsys.readouterr().err


def test_status_shows_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record(tmp_path / "log")
    assert engine("status") == 0
    assert capsys.readouterr().out.split() == ["one", "ended", "http://127.0.0.1:4321", "/model"]


def test_status_for_programs_is_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record(tmp_path / "log")
    assert engine("status", "--json") == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["name"], row["state"], row["port"]) == ("one", "ended", 4321)


def test_logs_are_the_last_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a\nb\nc\n")
    record(tmp_path / "log")
    assert engine("logs", "one", "--lines", "2") == 0
    assert capsys.readouterr().out == "b\nc\n"

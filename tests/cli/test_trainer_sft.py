"""`hermes-rl trainer sft` as it is typed."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from hermes_rl.cli.main import hermes_rl
from hermes_rl.cli.trainer_sft import FIELDS
from hermes_rl.console.run_command import run_click
from hermes_rl.training.config import TrainerSettings
from tests.training.recorded_groups import group, rollout
from tests.training.test_sft_data import written


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))


def typed(*words: str) -> int:
    return run_click(hermes_rl, ["trainer", *words], "hermes-rl")


def test_the_help_has_the_settings_that_have_an_effect() -> None:
    said = CliRunner().invoke(hermes_rl, ["trainer", "sft", "--help"]).output
    assert "--tinker.learning_rate" in said
    assert "--min-score" in said
    assert "--tinker.kl_coef" not in said
    assert TrainerSettings.model_fields.keys() >= FIELDS


def test_an_option_before_the_subcommand_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("--run", "one", "sft", str(written(tmp_path, group(rollout(1.0, ".#"))))) == 2
    assert "--run must follow sft" in capsys.readouterr().err


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("sft", "nothing.jsonl") == 2
    assert "nothing.jsonl" in capsys.readouterr().err


def test_what_was_chosen_and_left_out_is_said_before_the_engine_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, group(rollout(1.0, ".#"), rollout(0.0, ".#"), rollout(None, ".#")))
    assert typed("sft", str(file), "--tinker.base_model", str(tmp_path / "nothing")) == 2
    said = capsys.readouterr().err
    assert "1 rollouts chosen from 1 groups" in said
    assert "skipped: 1 rollouts not chosen" in said
    assert "skipped: 1 rollouts without a score" in said
    assert "there is no such folder" in said


def test_no_rollout_to_train_on_is_said_with_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, group(rollout(1.0, ".#"), rollout(1.0, ".#")))
    assert typed("sft", str(file)) == 2
    assert "choose others with --min-score and --top" in capsys.readouterr().err


def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("sft", str(written(tmp_path, group(rollout(1.0, ".#")))), "--run", "../elsewhere") == 2
    assert "without slashes" in capsys.readouterr().err

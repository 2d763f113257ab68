"""`hermes-rl trainer` as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hermes_rl.cli.main import hermes_rl
from hermes_rl.console.run_command import run_click
from tests.support.inference import CHATML


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))


def test_the_help_names_every_setting_with_its_value() -> None:
    said = CliRunner().invoke(hermes_rl, ["trainer", "--help"]).output
    assert "--tinker.learning_rate" in said
    assert "[4e-05]" in said
    assert "--stay" in said


def test_a_setting_that_cannot_be_is_named_with_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_click(hermes_rl, ["trainer", "--tinker.batch_size", "0"], "hermes-rl") == 2
    assert "--tinker.batch_size" in capsys.readouterr().err


def test_an_unknown_field_of_a_file_is_refused_with_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text("tinker: {learning_rat: 1}\n")
    assert run_click(hermes_rl, ["trainer", "--config", str(tmp_path / "run.yaml")], "hermes-rl") == 2
    assert "did you mean: learning_rat → learning_rate" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_said_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nothing")
    assert run_click(hermes_rl, ["trainer", "--tinker.base_model", missing], "hermes-rl") == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_a_run_to_start_from_that_is_not_there_is_said_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(CHATML.save(tmp_path / "model"))
    words = ["trainer", "--init-from", "words-0", "--tinker.base_model", model, "--tinker.base_url", "http://nobody"]
    assert run_click(hermes_rl, words, "hermes-rl") == 2
    assert "init_from words-0: no such run" in capsys.readouterr().err


def test_a_name_that_leads_elsewhere_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_click(hermes_rl, ["trainer", "--run", "../elsewhere"], "hermes-rl") == 2
    assert "without slashes" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install() -> None:
    program = "import sys; sys.modules |= {'numpy': None, 'tinker': None}; from hermes_rl.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "trainer"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: the trainer needs the Tinker SDK: pip install 'hermes-rl[train]'\n",
    )


def test_a_literal_secret_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "nothing")
    run_click(hermes_rl, ["trainer", "--tinker.base_model", missing, "--tinker.api_key", "tml-s3cret"], "hermes-rl")
    said = capsys.readouterr().err
    assert "--tinker.api_key holds a literal secret" in said
    assert "s3cret" not in said


def test_settings_are_saved_without_secrets() -> None:
    from hermes_rl.training.config import TrainerSettings

    settings = TrainerSettings(api_key="tml-s3cret", inference_token="env:TOKEN")
    saved = json.dumps(settings.model_dump(mode="json"))
    assert "s3cret" not in saved
    assert "env:TOKEN" in saved

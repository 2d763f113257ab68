"""`export RUN --to …` as a person and as a program meet it."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from hermes_rl.cli.export import export
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.paths import rl_home
from hermes_rl.training.engines.skyrl.paths import engines_home
from tests.support.adapters import random_adapter
from tests.support.model_folders import small_model
from tests.training.weights.archives import packed
from tests.training.weights.run_files import run_folder, saved


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return random_adapter(small_model(tmp_path / "base"), tmp_path / "words", seed=1)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(export, arguments, standalone_mode=False)


def failure(*arguments: str) -> str:
    error = run(*arguments).exception
    assert isinstance(error, click.UsageError | HermesRLError), error
    return error.format_message() if isinstance(error, click.UsageError) else str(error)


def test_weights_go_to_a_folder_named_for_what_they_are(adapter: Path) -> None:
    done = run("words", "--to", "merged")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "written: words-merged" in done.stderr
    assert (Path("words-merged") / "README.md").exists()


def test_json_leaves_standard_output_to_programs(adapter: Path) -> None:
    told = json.loads(run("words", "--to", "peft", "-o", "out", "--json").stdout)
    assert (told["form"], told["path"], told["step"]) == ("peft", "out", None)
    assert "adapter_model.safetensors" in told["files"]


@pytest.mark.parametrize(
    "arguments", [("weights", "words", "--to", "peft"), ("--to", "peft", "words"), ("words", "--to=peft")]
)
def test_the_word_and_the_order_do_not_matter(adapter: Path, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 0


def test_neither_rows_nor_weights_says_what_there_is(adapter: Path) -> None:
    assert failure("stf", "groups.jsonl", "-o", "rows.jsonl") == (
        "'stf' is neither sft, dpo nor atif; to export weights: hermes-rl export stf --to peft|merged|gguf"
    )


def test_a_run_that_is_not_there_says_what_could_be_named(adapter: Path) -> None:
    assert "no weights found for nothing" in failure("nothing", "--to", "peft")


def test_a_type_is_of_gguf_files_only(adapter: Path) -> None:
    assert "--type needs --to gguf" in failure("words", "--to", "merged", "--type", "f16")


def test_an_engine_that_is_away_says_how_to_start_it(tmp_path: Path) -> None:
    settings = {"base_url": "http://127.0.0.1:1", "base_model": "some/model"}
    folder = run_folder(tmp_path / "run", [saved(1)], settings=settings)
    assert "hermes-rl engine start" in failure(str(folder), "--to", "peft")


def test_a_stopped_engine_is_not_needed_for_weights_on_this_machine(adapter: Path) -> None:
    folder = engines_home() / "words-1" / "checkpoints" / "model_1" / "sampler_weights"
    folder.mkdir(parents=True)
    packed(folder, {file.name: file.read_bytes() for file in adapter.iterdir()}).rename(folder / "3.tar.gz")
    settings = {"base_url": "http://127.0.0.1:1", "base_model": str(adapter.parent / "base")}
    run_folder(
        rl_home() / "runs" / "words-1", [saved(3, sampler="tinker://model_1/sampler_weights/3")], settings=settings
    )
    assert run("words-1", "--to", "merged").exit_code == 0
    assert (Path("words-1-merged") / "model.safetensors").exists()


def test_a_key_on_the_command_line_is_warned_of(tmp_path: Path) -> None:
    done = run("tinker://run/sampler_weights/one", "--to", "peft", "--api-key", "tml-secret")
    assert "literal secret" in done.stderr and isinstance(done.exception, ConfigError)
    assert "tml-secret" not in done.stderr + str(done.exception)


def test_help_shows_both_meanings() -> None:
    shown = CliRunner().invoke(export, ["--help"]).stdout
    assert "sft|dpo|atif FILE... | RUN --to peft|merged|gguf" in shown

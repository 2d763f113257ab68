"""The settings that the components of a run read from its run file."""

from pathlib import Path

import pytest

from hermes_rl.console.config_options import resolve_section
from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.resolve_config import Settings, resolve_settings
from hermes_rl.orchestration.run_file import EnvironmentEntry, RunFile, part_sections, read_part
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.supervision import commands
from hermes_rl.orchestration.supervision.commands import resume_run, start_run
from hermes_rl.rollout.config import ENDLESS
from hermes_rl.training.config import TrainerSettings

KEY = "env:HERMES_RL_RUN_TOKEN"
RUN = RunFile(
    run_id="r1",
    name="two",
    preset="laptop",
    environments=(
        EnvironmentEntry(
            name="words", reference="terminal_words", env={"group_size": 4}, openai={"api_key": "env:KEY"}
        ),
        EnvironmentEntry(name="sums", reference="gsm8k", env={"group_size": 6}, openai={"timeout": 9}),
    ),
    tinker={"batch_size": 64, "total_steps": 5},
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.setattr(commands, "_start_supervisor", lambda paths: None)


def trainer_settings() -> TrainerSettings:
    return resolve_section(TrainerSettings(), "tinker", read_part(RunPaths("r1").file, "trainer"), {})


def environment_settings(entry: EnvironmentEntry) -> Settings:
    sections = read_part(RunPaths("r1").file, RUN.part_of(entry))
    return resolve_settings(load_environment(entry.reference), sections, {}, {"base_url": "http://x/v1"})


@pytest.mark.parametrize("reach", [None, "10.0.0.7"])
def test_a_component_resolves_the_settings_of_the_run_file(reach: str | None) -> None:
    start_run(RUN.model_copy(update={"reach": reach}))
    trainer = trainer_settings()
    assert (trainer.batch_size, trainer.total_steps) == (64, 5)
    assert (trainer.host, trainer.inference_token) == ((reach, KEY) if reach else ("127.0.0.1", None))
    for entry, size, api_key, timeout in zip(RUN.environments, (4, 6), ("env:KEY", None), (None, 9), strict=True):
        settings = environment_settings(entry)
        [endpoint] = settings.endpoints
        assert settings.env.group_size == size
        # The trainer counts the steps; the environment serves until the run stops it.
        assert settings.env.total_steps == ENDLESS
        assert settings.env.serve_dir == str(RunPaths("r1").serving(RUN.part_of(entry)))
        assert settings.env.rollout_server_token == (KEY if reach else None)
        assert endpoint.api_key == (KEY if reach else api_key)
        assert timeout is None or endpoint.timeout == timeout


def test_the_settings_are_the_same_after_a_resume() -> None:
    start_run(RUN)
    before = all_settings()
    resume_run("r1")
    assert all_settings() == before


def all_settings() -> list[object]:
    environments = [environment_settings(entry) for entry in RUN.environments]
    return [trainer_settings(), *((settings.env.model_dump(), settings.endpoints) for settings in environments)]


def test_a_start_writes_the_settings_to_one_file_only() -> None:
    start_run(RUN)
    files = [path for path in RunPaths("r1").folder.rglob("*") if path.is_file() and "group_size" in path.read_text()]
    assert files == [RunPaths("r1").file]


def test_an_unknown_component_is_refused() -> None:
    with pytest.raises(ConfigError, match="run r1 has no component 'env' with settings"):
        part_sections(RUN, "env")


def test_a_part_needs_the_run_file() -> None:
    with pytest.raises(ConfigError, match=r"--part needs --config with the run\.yaml"):
        read_part(None, "trainer")

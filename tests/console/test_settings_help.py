"""Help of commands with many settings: few by default, all with --help-all, in words that a reader knows."""

import re
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from pydantic import AfterValidator, BaseModel, Field

from hermes_rl.cli.environment_command import DeferredCommand
from hermes_rl.cli.main import hermes_rl
from hermes_rl.console.config_options import OWN_SETTINGS, SettingsCommand, section_options
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rollout.config import EvalHandling, HermesAgentEnvConfig
from hermes_rl.training.config import TrainerSettings

SECTIONS: list[type[BaseModel]] = [HermesAgentEnvConfig, APIServerConfig, TrainerSettings]


class OwnConfig(HermesAgentEnvConfig):
    words: int = Field(default=3, description="Ask for this many words.")


def shown(*arguments: str, default: BaseModel | None = None) -> str:
    command = SettingsCommand("do", params=section_options("env", default or HermesAgentEnvConfig()))
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("model", SECTIONS)
def test_every_field_stands_under_one_heading(model: Any) -> None:
    named = [name for names in model.help_layout.headings.values() for name in names]
    assert sorted(named) == sorted(model.model_fields)
    assert set(model.help_layout.common) <= set(named)


@pytest.mark.parametrize("model", SECTIONS)
def test_every_description_is_a_sentence_that_begins_with_a_verb(model: Any) -> None:
    nouns = {"The", "A", "An", "Maximum", "Minimum", "Number", "Seconds", "URL", "Token", "Whether"}
    for name, field in model.model_fields.items():
        first = (field.description or "").split(" ")[0]
        assert first[:1].isupper(), name
        assert first not in nouns, name


def test_help_shows_few_settings_and_names_the_way_to_all() -> None:
    text, everything = shown("--help"), shown("--help-all")
    assert "--env.group_size N" in text
    assert "--env.preview_size_chars" not in text
    assert re.search(r"\d+ more settings: do --help-all", text)
    assert all(f"--env.{name} " in everything for name in HermesAgentEnvConfig.model_fields)
    assert "more settings" not in everything


def test_an_environments_own_settings_come_first_and_are_always_shown() -> None:
    text = shown("--help", default=OwnConfig())
    assert text.index(OWN_SETTINGS) < text.index("--env.words N") < text.index("Rollouts:")


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (int | None, "N"),
        (Literal["none", "drop"], "none|drop"),
        (EvalHandling, "STOP_TRAIN|LIMIT_TRAIN|NONE"),
        (list[Annotated[str, AfterValidator(str)]] | None, "A,B,…"),
        (str | list[str], "TEXT|A,B,…"),
        (dict[str, int], "YAML"),
        (bool, "true|false"),
        (float, "NUMBER"),
    ],
)
def test_an_option_shows_the_values_it_takes(annotation: Any, said: str) -> None:
    model = type("Model", (BaseModel,), {"__annotations__": {"x": annotation}, "x": Field(default=None)})
    (option,) = section_options("env", model())
    assert option.get_help_record(click.Context(click.Command("do"))) == (f"--env.x {said}", "")


def test_short_flags_set_the_same_fields() -> None:
    def run(**values: str | None) -> None:
        given.update({name: value for name, value in values.items() if value is not None})

    given: dict[str, str] = {}
    options = section_options("openai", APIServerConfig())
    command = SettingsCommand("do", params=options, callback=run)
    assert CliRunner().invoke(command, ["-m", "small", "--url", "http://x/v1"]).exit_code == 0
    assert given == {"openai__model_name": "small", "openai__base_url": "http://x/v1"}


@pytest.mark.parametrize("name", ["process", "evaluate", "serve", "validate", "rescore", "replay"])
def test_a_command_shows_its_options_before_it_knows_its_environment(name: str) -> None:
    assert isinstance(hermes_rl.get_command(click.Context(hermes_rl), name), DeferredCommand)
    result = CliRunner().invoke(hermes_rl, [name, "--help"])
    assert result.exit_code == 0
    assert "--env.terminal_backend TEXT" in result.output
    assert "more settings: hermes-rl" in result.output

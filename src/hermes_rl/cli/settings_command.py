"""A command on an environment: its own options, then --config, --json and the settings of the environment.

Always true: `run` gets the resolved settings, whether they came from flags, a YAML file or the environment's defaults.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.console.config_options import (
    SettingsCommand,
    config_option,
    read_sections,
    section_options,
    section_values,
)
from hermes_rl.environment.resolve_config import Settings, config_defaults, resolve_settings
from hermes_rl.inference.config import APIServerConfig

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv

# Sections in the order of their options: what a command needs first stands first.
ENDPOINT_FIRST, ENVIRONMENT_FIRST, NO_ENDPOINT = ("openai", "env"), ("env", "openai"), ("env",)


def settings_command(
    name: str,
    environment: "type[HermesAgentBaseEnv]",
    run: Callable[..., int | None],
    options: Sequence[click.Parameter],
    *,
    sections: Sequence[str],
    json_help: str,
    help: str,  # noqa: A002 - click's name
) -> SettingsCommand:
    """`run(settings, as_json=…, …)` gets the values of `options` by name; its result is the exit code."""
    env_default, endpoints = config_defaults(environment)
    defaults = {"env": env_default, "openai": endpoints[0] if endpoints else APIServerConfig()}
    for option in options:
        if isinstance(option, click.Option) and option.show_default is None:
            option.show_default = True

    def resolve_and_run(config_file: Path | None, **values: Any) -> int | None:
        flags = {section: section_values(values, section) for section in defaults}
        settings: Settings = resolve_settings(environment, read_sections(config_file), flags["env"], flags["openai"])
        own = {option: value for option, value in values.items() if not option.startswith(("env__", "openai__"))}
        return run(settings, **own)

    read = " and ".join(sorted(sections))
    return SettingsCommand(
        name,
        callback=resolve_and_run,
        params=[
            *options,
            config_option(f"Read the section{'s' * (len(sections) > 1)} {read} from a YAML file."),
            click.Option(["--json", "as_json"], is_flag=True, help=json_help),
            *(option for section in sections for option in section_options(section, defaults[section])),
        ],
        help=help,
    )

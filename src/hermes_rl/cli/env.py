"""`hermes-rl env` (Write): list, describe, install and serve environments.

Listing runs no environment code; `show` runs one environment's code in a separate process to read its settings.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.cli.environment_command import EnvironmentCommand
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import is_literal
from hermes_rl.orchestration.discovery.discover import discover
from hermes_rl.orchestration.discovery.lookup import find_environment
from hermes_rl.orchestration.discovery.types import DiscoveredEnvironment, Discovery, EnvironmentSource

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.orchestration.configuration.introspect import DescribedField, Description

_SETTINGS = {"max_content_width": 110}
_LONGEST_VALUE = 60
EPISODES = 8
SERVE_HELP = """Serve an environment to OpenEnv clients: each connection plays an episode in a sandbox of its own.

The client takes the model's place: a reset shows the prompt, and its actions call the environment's tools. The last
step returns the reward. No model is needed; pass --openai.* if the reward calls one."""
# A run's trainer returns sampled tokens; an environment's own endpoint settings take precedence.
_IN_A_RUN = {"defaults_below": {"openai": {"server_type": "sglang"}}}


@click.group(context_settings=_SETTINGS)
def env() -> None:
    """List, describe, install and serve environments."""


@env.command("list", context_settings=_SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_environments(as_json: bool) -> None:
    """List bundled, installed and your own environments.

    Your own are found in ~/.hermes/rl/environments, in the folders listed in ~/.hermes/rl/environments.txt (one per
    line), and in those of the variable HERMES_RL_ENVIRONMENTS. Listing runs no code.
    """
    discovery = discover()
    if as_json:
        echo(fast_json.dumps(_as_json(discovery)).decode())
        return
    for found in discovery.found:
        echo(_line(found, max(len(other.name) for other in discovery.found)))
    for note in discovery.notes:
        echo(f"note: {note}", err=True)
    if discovery.broken:
        echo("\nFiles with errors:")
        for broken in discovery.broken:
            echo(f"  {broken}")


def _as_json(discovery: Discovery) -> dict[str, Any]:
    return {
        "environments": [found.as_json() for found in discovery.found],
        "broken": [broken.as_json() for broken in discovery.broken],
        "notes": list(discovery.notes),
    }


def _line(found: DiscoveredEnvironment, width: int) -> str:
    source = "" if found.source is EnvironmentSource.BUNDLED else f"[{found.source}] "
    kind = "" if found.kind == "hermes" else f"[{found.kind}] "
    return f"{found.name:<{width}}  {found.version}  {source}{kind}{found.description}"


@env.command(context_settings=_SETTINGS)
@click.argument("name")
@click.option("--all", "whole", is_flag=True, help="Show every setting, not only those this environment changes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every setting.")
def show(name: str, whole: bool, as_json: bool) -> int:
    """Show an environment: its file, and its settings with their allowed values.

    NAME is a name or id of `hermes-rl env list`, FILE.py, FILE.py:CLASS or MODULE:CLASS.
    """
    from hermes_rl.orchestration.configuration.introspect import describe

    found = find_environment(name)
    description, problem = None, None
    try:
        description = describe(found.reference, _IN_A_RUN)
    except ConfigError as error:
        problem = str(error)
    if as_json:
        config = None if description is None else asdict(description)
        echo(fast_json.dumps({**found.as_json(), "config": config, "problem": problem}).decode())
    else:
        _show(found, description, whole=whole)
        if problem is not None:
            echo(f"cannot read its settings: {problem}", err=True)
    return 0 if problem is None else 1


@env.command(
    context_settings=_SETTINGS, short_help="Install a verifiers package into a virtual environment of its own."
)
@click.argument("source")
@click.option(
    "--with",
    "requirements",
    multiple=True,
    metavar="REQUIREMENT",
    help="Install this too, such as 'verifiers==0.3.1'. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def install(source: str, requirements: tuple[str, ...], as_json: bool) -> None:
    """Install an environment package of verifiers, v0 or v1, into a virtual environment of its own.

    SOURCE is the package's name on the package index, with or without a version, or its folder. uv is used if it is on
    the PATH, which takes seconds where pip takes minutes. Installing again replaces the package.
    """
    from hermes_rl.interop.verifiers import packages

    package = run_async(packages.install(source, requirements, lambda text: echo(text, err=True)))
    if as_json:
        about = {**package.about, "name": package.name, "file": str(packages.environment_file(package.name))}
        echo(fast_json.dumps(about).decode())
        return
    about = package.about
    sizes = (
        "without end" if about["infinite"] else f"{about['sizes']['train']} items, {about['sizes']['eval']} held out"
    )
    tools = ", ".join(tool["name"] for tool in about["tools"]) or "none"
    echo(f"{package.name}: verifiers {about['kind']} ({about['verifiers']}), {sizes}, tools: {tools}")
    echo(f"try it: hermes-rl process {package.name}")


@env.command(context_settings=_SETTINGS)
@click.argument("name")
def remove(name: str) -> int:
    """Remove an installed package and its virtual environment."""
    from hermes_rl.interop.verifiers import packages

    if packages.uninstall(packages.package_name(name)):
        echo(f"removed {name}")
        return 0
    echo(f"{name} is not installed", err=True)
    return 1


def _serve_command(environment: "type[HermesAgentBaseEnv]") -> click.Command:
    from hermes_rl.console.config_options import (
        SettingsCommand,
        config_option,
        read_sections,
        section_options,
        section_values,
    )
    from hermes_rl.environment.resolve_config import config_defaults, resolve_settings
    from hermes_rl.inference.config import APIServerConfig

    env_default, endpoints = config_defaults(environment)
    options: list[click.Parameter] = [
        config_option("Read the sections env and openai from a YAML file."),
        click.Option(
            ["--openenv"],
            is_flag=True,
            required=True,
            expose_value=False,
            help="Speak the OpenEnv protocol; required.",
        ),
        click.Option(
            ["--split"],
            type=click.Choice(("train", "eval")),
            default="train",
            help="Play the items of this split: seed N is item N. [train]",
        ),
        click.Option(
            ["--max-episodes"],
            type=click.IntRange(min=1),
            default=EPISODES,
            help=f"Refuse connections beyond this number; each has a sandbox. [{EPISODES}]",
        ),
        click.Option(
            ["--host"],
            default="127.0.0.1",
            help="Listen on this address. Other than loopback needs --token. [127.0.0.1]",
        ),
        click.Option(
            ["--port"], type=click.IntRange(0, 65_535), default=0, help="Listen on this port; 0 picks a free one. [0]"
        ),
        click.Option(["--token"], help="Require this bearer token; env:NAME or file:PATH. [none]"),
        click.Option(["--json", "as_json"], is_flag=True, help="Print {url} as one JSON object when ready."),
        *section_options("env", env_default),
        *section_options("openai", endpoints[0] if endpoints else APIServerConfig()),
    ]

    def run(
        config_file: Path | None,
        split: str,
        max_episodes: int,
        host: str,
        port: int,
        token: str | None,
        as_json: bool,
        **flags: str | None,
    ) -> None:
        from hermes_rl.environment.simulated_user import require_user_endpoint
        from hermes_rl.interop.openenv.our_server import ServeSettings, serve_openenv

        settings = resolve_settings(
            environment, read_sections(config_file), section_values(flags, "env"), section_values(flags, "openai")
        )
        require_user_endpoint(getattr(environment, "user", None), settings.env.user_endpoint)
        if token is not None and is_literal(token):
            echo(
                "warning: --token holds the token itself, which other users of this machine can see; use env:NAME",
                err=True,
            )

        def ready(url: str) -> None:
            if as_json:
                echo(fast_json.dumps({"url": url}).decode())
                return
            echo(f"OpenEnv server of {environment.display_name()}: {url}\npress Ctrl-C to stop", err=True)

        run_async(serve_openenv(environment, settings, ServeSettings(split, max_episodes, host, port, token), ready))

    return SettingsCommand("serve", callback=run, params=options, help=SERVE_HELP)


env.add_command(
    EnvironmentCommand(
        "serve",
        _serve_command,
        help=f"{SERVE_HELP}\n\nENVIRONMENT is a name of `hermes-rl env list`, FILE.py, FILE.py:CLASS or MODULE:CLASS.",
        short_help="Serve an environment to OpenEnv clients.",
        options_metavar="ENVIRONMENT --openenv [OPTIONS]",
    )
)


def _show(found: DiscoveredEnvironment, description: "Description | None", *, whole: bool) -> None:
    echo(f"{found.id}  ({found.kind}, {found.source})\n{found.description}\n{found.file}:{found.line}")
    if description is None:
        return
    for section, fields in (("env", description.env), ("openai", description.openai)):
        shown = [field for field in fields.values() if whole or field.set_by_config_init or field.own]
        if shown:
            echo(f"\n{section}:")
        for field in shown:
            echo(f"  {field.name} = {_value(field)}\n      {_help(field)}")
    for problem in description.problems:
        echo(f"\nproblem: {problem.message}")
    if not whole:
        echo(f"\nOther settings have their defaults; show them with: hermes-rl env show {found.name} --all")


def _value(field: "DescribedField") -> str:
    text = fast_json.dumps(field.value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _help(field: "DescribedField") -> str:
    return " ".join(filter(None, [field.description, f"[{field.allowed or field.type}]"]))

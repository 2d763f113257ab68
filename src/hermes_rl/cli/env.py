"""`hermes-rl env`: which environments there are, and what one is set to.

Listing runs no environment's code; `show` runs the one environment's, in a process of its own, to learn its settings.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.runs.discovery.finding import find_environment
from hermes_rl.runs.discovery.found import Discovery, Found, Source
from hermes_rl.runs.discovery.listing import discover

if TYPE_CHECKING:
    from hermes_rl.runs.configuration.described import DescribedField, Description

_SETTINGS = {"max_content_width": 110}
_LONGEST_VALUE = 60
# A run's trainer answers with the tokens it sampled; what an environment says itself of its endpoint stays.
_IN_A_RUN = {"beneath": {"openai": {"server_type": "sglang"}}}


@click.group(context_settings=_SETTINGS)
def env() -> None:
    """See which environments there are."""


@env.command("list", context_settings=_SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_environments(as_json: bool) -> None:
    """List all environments: bundled, your own, installed.

    Your own are in ~/.hermes/rl/environments, in the folders that ~/.hermes/rl/environments.txt lists, one a line, and
    in those of the variable HERMES_RL_ENVIRONMENTS. No file is run for this, and a new one is seen at once.
    """
    discovery = discover()
    if as_json:
        click.echo(jsontext.dumps(_as_json(discovery)).decode())
        return
    for found in discovery.found:
        click.echo(_line(found, max(len(one.name) for one in discovery.found)))
    for note in discovery.notes:
        click.echo(f"note: {note}", err=True)
    if discovery.broken:
        click.echo("\nThese cannot be used:")
        for broken in discovery.broken:
            click.echo(f"  {broken}")


def _as_json(discovery: Discovery) -> dict[str, Any]:
    return {
        "environments": [found.as_json() for found in discovery.found],
        "broken": [broken.as_json() for broken in discovery.broken],
        "notes": list(discovery.notes),
    }


def _line(found: Found, width: int) -> str:
    whose = "" if found.source is Source.BUNDLED else f"[{found.source}] "
    kind = "" if found.kind == "hermes" else f"[{found.kind}] "
    return f"{found.name:<{width}}  {found.version}  {whose}{kind}{found.description}"


@env.command(context_settings=_SETTINGS)
@click.argument("name")
@click.option("--all", "whole", is_flag=True, help="Show every setting, not only what this environment chose itself.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every setting.")
def show(name: str, whole: bool, as_json: bool) -> int:
    """Show one environment: where it is, and its settings with what each may be.

    NAME is a name or an id of `hermes-rl env list`, FILE.py or FILE.py:CLASS.
    """
    from hermes_rl.runs.configuration.described import describe

    found = find_environment(name)
    description, problem = None, None
    try:
        description = describe(found.reference, _IN_A_RUN)
    except ConfigError as error:
        problem = str(error)
    if as_json:
        config = None if description is None else asdict(description)
        click.echo(jsontext.dumps({**found.as_json(), "config": config, "problem": problem}).decode())
    else:
        _show(found, description, whole=whole)
        if problem is not None:
            click.echo(f"its settings are not known: {problem}", err=True)
    return 0 if problem is None else 1


def _show(found: Found, description: "Description | None", *, whole: bool) -> None:
    click.echo(f"{found.id}  ({found.kind}, {found.source})\n{found.description}\n{found.file}:{found.line}")
    if description is None:
        return
    for section, fields in (("env", description.env), ("openai", description.openai)):
        shown = [field for field in fields.values() if whole or field.said or field.own]
        if shown:
            click.echo(f"\n{section}:")
        for field in shown:
            click.echo(f"  {field.name} = {_value(field)}\n      {_help(field)}")
    for problem in description.problems:
        click.echo(f"\nproblem: {problem.message}")
    if not whole:
        click.echo(f"\nEverything else has its usual value: hermes-rl env show {found.name} --all")


def _value(field: "DescribedField") -> str:
    text = jsontext.dumps(field.value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _help(field: "DescribedField") -> str:
    return " ".join(filter(None, [field.description, f"[{field.allowed or field.type}]"]))

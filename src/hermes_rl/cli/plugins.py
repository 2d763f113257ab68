"""`hermes-rl plugins` (Maintain): list installed extensions, and with --all the built-in parts."""

from dataclasses import asdict

import click

from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import BUILT_IN, KINDS, Extension


@click.command()
@click.option("--all", "show_all", is_flag=True, help="List built-in parts too.")
@click.option("--load", "try_load", is_flag=True, help="Import each listed part, and exit with 1 if one fails.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(show_all: bool, try_load: bool, as_json: bool) -> int:
    """List installed extensions: environments, sandbox backends, parsers, toolsets, samplers, objectives, and so on.

    A package adds one with an entry point of the group hermes_rl.KIND. A setting can also name `module:Name` or
    `file.py:Name` directly, without installing anything: docs/extending.md.
    """
    found = [extension for kind in KINDS for extension in kind.found() if show_all or extension.origin != BUILT_IN]
    problems = {extension: _problem(extension) for extension in found} if try_load else {}
    if as_json:
        rows = [asdict(extension) | ({"problem": problems[extension]} if try_load else {}) for extension in found]
        echo(fast_json.dumps(rows).decode())
    else:
        for extension in found:
            problem = f"  FAILS: {problems[extension]}" if problems.get(extension) else ""
            echo(f"{extension.kind:<17} {extension.name:<20} {extension.origin:<24} {extension.reference}{problem}")
        if not found:
            echo("no extension is installed; --all lists the built-in parts; docs/extending.md shows how to add one")
    return 1 if any(problems.values()) else 0


def _problem(extension: Extension) -> str | None:
    kind = next(kind for kind in KINDS if kind.name == extension.kind)
    try:
        kind.resolve(extension.name)
    except ConfigError as error:
        return str(error)
    return None

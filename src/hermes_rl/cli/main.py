"""The entry point `hermes-rl COMMAND …`.

A command is a module of this package whose docstring begins "`hermes-rl NAME …` (Group): what it does", so adding one
takes one file. It is imported only when the command is used.
"""

import re
import sys
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import NamedTuple

import click

from hermes_rl.console.live_display import warn
from hermes_rl.console.run_command import run_click
from hermes_rl.core.keys import load_keys
from hermes_rl.version import __version__

ALIASES = {"generate": "process", "eval": "evaluate"}
# Shown first in its group.
FIRST = "quickstart"
GROUPS = ("Write", "Run", "Train", "Look", "Serve", "Maintain")
_FIRST_LINE = re.compile(r'"""`hermes-rl ([a-z]+)[^`]*` \((\w+)\): (.+?)\.?(?:"""|\n)')


class Listed(NamedTuple):
    """One command as `hermes-rl --help` shows it."""

    group: str
    help: str
    module: str


@cache
def listed_commands() -> dict[str, Listed]:
    """Every command by its name, read from the sources: `hermes-rl --help` imports none of them."""
    found = {}
    for entry in files("hermes_rl.cli").iterdir():
        source = entry / "__init__.py" if entry.is_dir() else entry
        if not source.name.endswith(".py") or not source.is_file():
            continue
        with source.open(encoding="utf-8") as file:
            line = _FIRST_LINE.match(file.readline())
        if line:
            name, group, text = line.groups()
            module = entry.name.removesuffix(".py")
            found[name] = Listed(group, f"{text[0].upper()}{text[1:]}.", module)
    return found


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(listed_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in self.commands and (found := listed_commands().get(name)):
            module = import_module(f"hermes_rl.cli.{found.module}")
            self.add_command(getattr(module, name, None) or getattr(module, found.module))
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        close = get_close_matches(args[0], [*listed_commands(), *ALIASES], n=1)
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if close:
                raise click.UsageError(f"No such command '{args[0]}'. Did you mean '{close[0]}'?", ctx) from error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, listed_commands()))
        for group in GROUPS:
            members = sorted(
                (name != FIRST, name, one.help) for name, one in listed_commands().items() if one.group == group
            )
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), text) for _, name, text in members])


@click.group(cls=_Commands, context_settings={"max_content_width": 110})
@click.version_option(__version__, prog_name="hermes-rl")
def hermes_rl() -> None:
    """Train, evaluate and generate data for LLM agents that use tools."""


def main() -> None:
    # These two report where each key is stored.
    if sys.argv[1:2] not in (["config"], ["doctor"]):
        load_keys(warn)
    sys.exit(run_click(hermes_rl, None, prog_name="hermes-rl"))

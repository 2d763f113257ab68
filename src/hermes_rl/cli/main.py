"""`hermes-rl VERB …`: every verb with help for a newcomer, and errors that say the next step.

A verb that runs an environment takes its name or file first; the options after it are that environment's own. Always
true: a verb is loaded when it is called by its name, and only `--help` over all of them loads all.
"""

import sys
from functools import partial
from importlib import import_module

import click

from hermes_rl.terminal.running import run_click
from hermes_rl.version import __version__

ALIASES = {"generate": "process", "eval": "evaluate"}
# Of an environment.
MODES = ("process", "evaluate", "serve")
# Each is the function of this name in the module of this name.
VERBS = (
    "agent",
    "api",
    "clean",
    "compare",
    "config",
    "doctor",
    "engine",
    "env",
    "export",
    "gateway",
    "init",
    "mcp",
    "replay",
    "replicas",
    "report",
    "rescore",
    "run",
    "sandbox",
    "train",
    "trainer",
    "validate",
    "view",
)


class _Verbs(click.Group):
    """Finds a verb by its alias too."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted((*MODES, *VERBS))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in self.commands and name in {*MODES, *VERBS}:
            self.add_command(_mode(name) if name in MODES else _verb(name))
        return super().get_command(ctx, name)


@click.group(cls=_Verbs, help=__doc__, context_settings={"max_content_width": 110})
@click.version_option(__version__, prog_name="hermes-rl")
def hermes_rl() -> None:
    pass


hermes_rl.help = "Train, evaluate and generate data for LLM agents that use tools."


def main() -> None:
    sys.exit(run_click(hermes_rl, None, prog_name="hermes-rl"))


def _verb(name: str) -> click.Command:
    command: click.Command = getattr(import_module(f"hermes_rl.cli.{name}"), name)
    return command


def _mode(name: str) -> click.Command:
    from hermes_rl.cli.environment_verb import EnvironmentVerb
    from hermes_rl.cli.serve import serve_command
    from hermes_rl.environment.command import MODES as SAID
    from hermes_rl.environment.command import mode_command

    return EnvironmentVerb(
        name,
        serve_command if name == "serve" else partial(mode_command, mode=name),
        help=f"{SAID[name]}\n\nENVIRONMENT is a name of `hermes-rl env list`, FILE.py or FILE.py:CLASS. "
        f"All its options: hermes-rl {name} ENVIRONMENT --help",
        options_metavar="ENVIRONMENT [OPTIONS]",
    )

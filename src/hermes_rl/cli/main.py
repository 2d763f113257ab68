"""`hermes-rl VERB …`: every verb with help for a newcomer, and errors that say the next step.

A verb that runs an environment takes its name or file first; the options after it are that environment's own.
"""

import sys
from functools import partial

import click

from hermes_rl.cli.agent import agent
from hermes_rl.cli.api import api
from hermes_rl.cli.compare import compare
from hermes_rl.cli.config import config
from hermes_rl.cli.doctor import doctor
from hermes_rl.cli.engine import engine
from hermes_rl.cli.env import env
from hermes_rl.cli.environment_verb import EnvironmentVerb
from hermes_rl.cli.export import export
from hermes_rl.cli.gateway import gateway
from hermes_rl.cli.init import init
from hermes_rl.cli.mcp import mcp
from hermes_rl.cli.replay import replay
from hermes_rl.cli.report import report
from hermes_rl.cli.rescore import rescore
from hermes_rl.cli.run import run
from hermes_rl.cli.sandbox import sandbox
from hermes_rl.cli.train import train
from hermes_rl.cli.trainer import trainer
from hermes_rl.cli.validate import validate
from hermes_rl.environment.command import MODES, mode_command, run_click
from hermes_rl.version import __version__

ALIASES = {"generate": "process", "eval": "evaluate"}


class _Verbs(click.Group):
    """Finds a verb by its alias too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))


@click.group(cls=_Verbs, help=__doc__, context_settings={"max_content_width": 110})
@click.version_option(__version__, prog_name="hermes-rl")
def hermes_rl() -> None:
    pass


hermes_rl.help = "Train, evaluate and generate data for LLM agents that use tools."
for _mode, _help in MODES.items():
    hermes_rl.add_command(
        EnvironmentVerb(
            _mode,
            partial(mode_command, mode=_mode),
            help=f"{_help}\n\nENVIRONMENT is a name of `hermes-rl env list`, FILE.py or FILE.py:CLASS. "
            f"All its options: hermes-rl {_mode} ENVIRONMENT --help",
            options_metavar="ENVIRONMENT [OPTIONS]",
        )
    )


for _verb in (
    env,
    train,
    run,
    mcp,
    api,
    trainer,
    engine,
    gateway,
    init,
    validate,
    compare,
    rescore,
    replay,
    export,
    report,
    sandbox,
    agent,
    config,
    doctor,
):
    hermes_rl.add_command(_verb)


def main() -> None:
    sys.exit(run_click(hermes_rl, None, prog_name="hermes-rl"))

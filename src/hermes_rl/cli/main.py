"""`hermes-rl VERB …`: every verb with help for a newcomer, and errors that say the next step.

A verb that runs an environment takes its name or file first; the options after it are that environment's own. Always
true: a verb is loaded only when it is called by its name.
"""

import sys
from functools import partial
from importlib import import_module

import click

from hermes_rl.terminal.running import run_click
from hermes_rl.version import __version__

ALIASES = {"generate": "process", "eval": "evaluate"}
# What `hermes-rl --help` says of each, so that it loads none of them. First those that run an environment.
MODES = {
    "evaluate": "Run the agent on the held-out items and write metrics.json and samples.jsonl.",
    "process": "Make groups of rollouts and write them to a JSONL file.",
    "serve": "Make groups of rollouts and deliver them to a trajectory API.",
}
# Each is the function of this name in the module of this name.
VERBS = {
    "agent": "List and install ready-made agents to train in place of our loop.",
    "api": "Take finished groups from environments and hand batches to trainers.",
    "clean": "List what hermes-rl keeps on this disk, and remove what you select.",
    "compare": "Compare two evaluations item by item.",
    "config": "Keep the keys that training runs need.",
    "doctor": "Check what a training run needs of this machine.",
    "engine": "Train on this machine: SkyRL behind the Tinker API, on a CPU or a GPU.",
    "env": "List and describe environments.",
    "export": "Export data as TRL and `datasets` read it, or a run's weights.",
    "gateway": "Let any agent call your model as it calls its provider, with exact tokens.",
    "init": "Write a new environment NAME_env.py and its test.",
    "mcp": "Serve the ten rl_* tools over MCP.",
    "replay": "Show one recorded rollout step by step, and run it again.",
    "replicas": "Watch, resize and drain the replicas of `hermes-rl serve ENV --replicas N`.",
    "report": "Write one HTML file about a run, an evaluation or a file of groups.",
    "rescore": "Score recorded rollouts again after a change of the reward.",
    "run": "Start, watch and stop training runs.",
    "sandbox": "List, check, prepare and remove the sandboxes that rollouts run in.",
    "train": "Train a model on an environment: API, trainer and environment in one command.",
    "trainer": "Train on the groups that environments send to the trajectory API.",
    "validate": "Try an environment with scripted agents, cheats among them.",
    "view": "Look at rollouts in a browser.",
}


class _Verbs(click.Group):
    """Finds a verb by its alias too."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted((*MODES, *VERBS))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in self.commands and name in {*MODES, *VERBS}:
            self.add_command(_mode(name) if name in MODES else _verb(name))
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted((MODES | VERBS).items()))


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

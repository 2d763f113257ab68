"""`hermes-rl VERB …`: every verb with help for a newcomer, and errors that say the next step.

A verb that runs an environment takes its name or file first; the options after it are that environment's own. Always
true: a verb is loaded only when it is called by its name.
"""

import sys
from importlib import import_module

import click

from hermes_rl.terminal.running import run_click
from hermes_rl.version import __version__

ALIASES = {"generate": "process", "eval": "evaluate"}
# Each is the function of this name in the module of this name. `hermes-rl --help` shows these lines and loads none.
VERBS = {
    "agent": "List and install ready-made agents to train in place of our loop.",
    "api": "Take finished groups from environments and hand batches to trainers.",
    "clean": "List what hermes-rl keeps on this disk, and remove what you select.",
    "compare": "Compare two evaluations item by item.",
    "config": "Keep the keys that training runs need.",
    "doctor": "Check what a training run needs of this machine.",
    "engine": "Train on this machine: SkyRL behind the Tinker API, on a CPU or a GPU.",
    "env": "List and describe environments.",
    "evaluate": "Run the agent on the held-out items and write metrics.json and samples.jsonl.",
    "export": "Export data as TRL and `datasets` read it, or a run's weights.",
    "gateway": "Let any agent call your model as it calls its provider, with exact tokens.",
    "init": "Write a new environment NAME_env.py and its test.",
    "mcp": "Serve the ten rl_* tools over MCP.",
    "process": "Make groups of rollouts and write them to a JSONL file.",
    "replay": "Show one recorded rollout step by step, and run it again.",
    "replicas": "Watch, resize and drain the replicas of `hermes-rl serve ENV --replicas N`.",
    "report": "Write one HTML file about a run, an evaluation or a file of groups.",
    "rescore": "Score recorded rollouts again after a change of the reward.",
    "run": "Start, watch and stop training runs.",
    "sandbox": "List, check, prepare and remove the sandboxes that rollouts run in.",
    "serve": "Make groups of rollouts and deliver them to a trajectory API.",
    "train": "Train a model on an environment: API, trainer and environment in one command.",
    "trainer": "Train on the groups that environments send to the trajectory API.",
    "validate": "Try an environment with scripted agents, cheats among them.",
    "view": "Look at rollouts in a browser.",
}


class _Verbs(click.Group):
    """Finds a verb by its alias too."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in self.commands and name in VERBS:
            self.add_command(_verb(name))
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(VERBS.items()))


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

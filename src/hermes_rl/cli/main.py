"""The entry point `hermes-rl COMMAND …`. A command's module is imported only when the command is used."""

import sys
from importlib import import_module

import click

from hermes_rl.console.live_display import warn
from hermes_rl.console.run_command import run_click
from hermes_rl.core.keys import load_keys
from hermes_rl.environment.modes import MODES
from hermes_rl.version import __version__

ALIASES = {"generate": "process", "eval": "evaluate"}
# Each command is the function of this name in the module of this name; `hermes-rl --help` imports none of them.
COMMANDS = {
    **MODES,
    "agent": "List and install ready-made agents to train instead of the built-in loop.",
    "api": "Run the trajectory API: groups from environments in, batches for trainers out.",
    "clean": "List files of hermes-rl on this disk, and remove those you select.",
    "compare": "Compare two evaluations item by item.",
    "config": "Store the API keys that training runs need.",
    "doctor": "Check that this machine has what a training run needs.",
    "engine": "Run a local training engine: SkyRL behind the Tinker API, on a CPU or a GPU.",
    "env": "List and describe environments.",
    "export": "Export rollouts as SFT or DPO data for TRL, or export a run's weights.",
    "gateway": "Serve your model to any agent through OpenAI and Anthropic APIs, recording exact tokens.",
    "init": "Write a new environment NAME_env.py and its test.",
    "mcp": "Serve the ten rl_* tools over MCP.",
    "plugins": "List installed extensions, and with --all the built-in parts.",
    "replay": "Replay one recorded rollout step by step in a fresh sandbox.",
    "replicas": "Show, resize and drain the replicas of `hermes-rl serve ENV --replicas N`.",
    "report": "Write a self-contained HTML report of a run, an evaluation or a file of groups.",
    "rescore": "Score recorded rollouts again after a change to the reward.",
    "run": "Start, watch and stop training runs.",
    "sandbox": "List, check, prepare and clean up the sandboxes of rollouts.",
    "train": "Train a model on an environment: API, trainer and environment in one command.",
    "trainer": "Train a policy on batches from a trajectory API.",
    "validate": "Test an environment's reward with scripted agents, including cheats.",
    "view": "Browse rollouts, runs and evaluations in a web browser.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in self.commands and name in COMMANDS:
            self.add_command(getattr(import_module(f"hermes_rl.cli.{name}"), name))
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"max_content_width": 110})
@click.version_option(__version__, prog_name="hermes-rl")
def hermes_rl() -> None:
    """Train, evaluate and generate data for LLM agents that use tools."""


def main() -> None:
    # These two report where each key is stored.
    if sys.argv[1:2] not in (["config"], ["doctor"]):
        load_keys(warn)
    sys.exit(run_click(hermes_rl, None, prog_name="hermes-rl"))

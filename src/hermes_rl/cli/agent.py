"""`hermes-rl agent` (Maintain): list and install ready-made agents to train instead of the built-in loop."""

import click

from hermes_rl.agent.harnesses.installer import STEPS, install, installed_folder
from hermes_rl.agent.harnesses.registry import get_agent, listed_agents
from hermes_rl.cli.progress import progress
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json


@click.group()
def agent() -> None:
    """List and install ready-made agents to train instead of the built-in loop."""


@agent.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_agents(as_json: bool) -> None:
    """List the ready-made agents and where they are installed."""
    if as_json:
        echo(
            fast_json.dumps(
                [
                    {
                        "name": agent.name,
                        "version": agent.version,
                        "about": agent.about,
                        "licence": agent.licence,
                        "dialect": agent.dialect,
                        "folder": str(folder) if (folder := installed_folder(agent)) else None,
                    }
                    for agent in listed_agents()
                ]
            )
        )
        return
    for agent in listed_agents():
        folder = installed_folder(agent)
        echo(f"{agent.name:<14} {agent.version:<9} {agent.about} ({agent.licence}; {agent.dialect})")
        state = f"installed: {folder}" if folder else "not installed" if agent.pip else "nothing to install"
        echo(f"{'':<14} {'':<9} {state}")


@agent.command("install")
@click.argument("name")
def install_agent(name: str) -> None:
    """Install an agent for the sandboxes of this machine. Needs the network; rollouts do not."""
    agent = get_agent(name)
    if not agent.pip:
        echo(f"{name} has no packages to install", err=True)
        return
    folder = installed_folder(agent)
    if folder is None:
        echo(f"installing {name} {agent.version}, one to three minutes", err=True)
        with progress(f"installing {name}", STEPS) as steps:
            folder = install(agent, steps.show)
    echo(str(folder))

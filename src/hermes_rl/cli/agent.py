"""`hermes-rl agent VERB …`: the ready-made agents, and installing one for the sandboxes of this machine."""

import click

from hermes_rl import jsontext
from hermes_rl.agents.installing import STEPS, install, installed
from hermes_rl.agents.registry import AGENTS, known
from hermes_rl.cli.progress import progress


@click.group()
def agent() -> None:
    """See and install agents of others, to train them in place of our loop."""


@agent.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_agents(as_json: bool) -> None:
    """List the ready-made agents, and where each is installed."""
    if as_json:
        click.echo(
            jsontext.dumps(
                [
                    {
                        "name": one.name,
                        "version": one.version,
                        "about": one.about,
                        "licence": one.licence,
                        "dialect": one.dialect,
                        "folder": str(folder) if (folder := installed(one)) else None,
                    }
                    for one in AGENTS.values()
                ]
            )
        )
        return
    for one in AGENTS.values():
        folder = installed(one)
        click.echo(f"{one.name:<14} {one.version:<9} {one.about} ({one.licence}; {one.dialect})")
        click.echo(f"{'':<14} {'':<9} {f'installed: {folder}' if folder else 'not installed'}")


@agent.command("install")
@click.argument("name")
def install_agent(name: str) -> None:
    """Install an agent for the sandboxes of this machine. Needs a network, once; a rollout never does."""
    one = known(name)
    folder = installed(one)
    if folder is None:
        click.echo(f"installing {name} {one.version} for the sandboxes of this machine, about a minute", err=True)
        with progress(f"installing {name}", STEPS) as steps:
            folder = install(one, steps.show)
    click.echo(str(folder))

"""`hermes-rl sandbox VERB …`: which sandboxes work here, whether a backend keeps its promises, preparing, clearing."""

import asyncio
from dataclasses import dataclass, fields
from typing import Any

import click

from hermes_rl import jsontext
from hermes_rl.cli.environment_verb import EnvironmentVerb
from hermes_rl.cli.progress import progress
from hermes_rl.cli.sandbox_check import check
from hermes_rl.cli.sandbox_prepare import HELP, prepare_command
from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.sandbox.backends import NAMES, make_backend
from hermes_rl.sandbox.ledger import Entry
from hermes_rl.sandbox.reaper import Reaped, reap
from hermes_rl.sandbox.spec import Capabilities
from hermes_rl.terminal.running import on_a_loop

PROBE_TIME = 90.0


@click.group()
def sandbox() -> None:
    """See, check, prepare and clear away the sandboxes that rollouts run in."""


sandbox.add_command(check)
sandbox.add_command(
    EnvironmentVerb(
        "prepare",
        prepare_command,
        help=f"{HELP}\n\nENVIRONMENT is a bundled name, FILE.py or FILE.py:CLASS. All its options: "
        "hermes-rl sandbox prepare ENVIRONMENT --help",
        options_metavar="ENVIRONMENT [OPTIONS]",
    )
)


@dataclass(frozen=True, slots=True)
class _Listed:
    name: str
    reason: str
    capabilities: Capabilities | None


@sandbox.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_backends(as_json: bool) -> None:
    """List the backends: whether each works here, really tried, and what it holds.

    Trying means starting a sandbox with the backend's own defaults. Where you have an account of modal or daytona one
    is started there; docker fetches its default image if that is missing.
    """
    listed = on_a_loop(_try_all())
    if as_json:
        click.echo(jsontext.dumps([_as_dict(one) for one in listed]))
        return
    for one in listed:
        click.echo(f"{one.name:<12} " + ("works here" if not one.reason else f"does not work here: {one.reason}"))
        if one.capabilities is not None and not one.reason:
            click.echo(f"{'':<12} {_held(one.capabilities)}")
    click.echo("A backend that needs settings is tried by: hermes-rl sandbox check NAME --setting KEY=VALUE", err=True)


async def _try_all() -> list[_Listed]:
    with progress("trying backends", len(NAMES)) as shown:
        done = 0

        async def one(name: str) -> _Listed:
            nonlocal done
            try:
                return await _try(name)
            finally:
                done += 1
                shown.show(done, name)

        return await asyncio.gather(*map(one, NAMES))


async def _try(name: str) -> _Listed:
    try:
        backend = make_backend(name)
    except ConfigError as error:
        return _Listed(name, str(error), None)
    reason = ""
    try:
        async with asyncio.timeout(PROBE_TIME):
            await backend.probe()
    except TimeoutError:
        reason = f"no sandbox was ready after {PROBE_TIME:.0f} s"
    except (SandboxError, ConfigError) as error:
        reason = str(error)
    finally:
        await backend.close()
    return _Listed(name, reason, backend.capabilities)


def _held(can: Capabilities) -> str:
    apart = " and ".join(["files"] * can.isolates_files + ["processes"] * can.isolates_processes)
    network = " or ".join(["off"] * can.network_off + ["on"] * can.network_on)
    held = [f"isolates {apart}" if apart else "NO SANDBOX: isolates nothing", f"network {network or 'as it is there'}"]
    held.append(f"limits {', '.join(sorted(can.limits))}" if can.limits else "no limits")
    held += ["images"] * can.images + ["root user"] * can.root_user + ["writable root"] * can.writable_root
    held += ["folders of this machine"] * can.folders
    return "; ".join(held)


def _as_dict(one: _Listed) -> dict[str, Any]:
    can = one.capabilities
    flags = {field.name: getattr(can, field.name) for field in fields(Capabilities)} if can is not None else None
    if flags is not None:
        flags["limits"] = sorted(flags["limits"])
    return {"name": one.name, "works": not one.reason, "reason": one.reason, "capabilities": flags}


@sandbox.command("reap")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reap_sandboxes(dry_run: bool, as_json: bool) -> int:
    """Remove the sandboxes that processes left behind when they were killed.

    Only what our own ledgers (~/.hermes/rl/sandboxes) name is touched, and only that of dead processes. Runs do this by
    themselves at their start and every five minutes. The exit status is 1 when something could not be removed.
    """
    reaped = on_a_loop(reap(dry_run=dry_run))
    if as_json:
        click.echo(jsontext.dumps(_reaped_as_dict(reaped, dry_run)))
    else:
        for entry in reaped.removed:
            click.echo(f"{'would remove' if dry_run else 'removed'} {_named(entry)}")
        for entry, reason in reaped.left:
            click.echo(f"left {_named(entry)}: {reason}")
        verb = "would be removed" if dry_run else "removed"
        left = f", {len(reaped.left)} left for the next time" if reaped.left else ""
        click.echo(f"{len(reaped.removed)} sandboxes of {reaped.owners} dead processes {verb}{left}")
    return 1 if reaped.left else 0


def _named(entry: Entry) -> str:
    return f"{entry.name} ({entry.backend})"


def _reaped_as_dict(reaped: Reaped, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "owners": reaped.owners,
        "removed": [{"name": entry.name, "backend": entry.backend} for entry in reaped.removed],
        "left": [{"name": entry.name, "backend": entry.backend, "reason": reason} for entry, reason in reaped.left],
    }

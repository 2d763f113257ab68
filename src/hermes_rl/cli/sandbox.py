"""`hermes-rl sandbox` (Maintain): list, check, prepare and clean up the sandboxes of rollouts."""

import asyncio
from dataclasses import dataclass, fields
from typing import Any

import click

from hermes_rl.cli.environment_command import EnvironmentCommand
from hermes_rl.cli.progress import progress
from hermes_rl.cli.sandbox_check import check
from hermes_rl.cli.sandbox_prepare import HELP, prepare_command
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.backends.registry import NAMES, make_backend
from hermes_rl.sandbox.ledger import LedgerEntry
from hermes_rl.sandbox.reaper import ReapResult, reap
from hermes_rl.sandbox.spec import Capabilities

PROBE_TIME = 90.0


@click.group()
def sandbox() -> None:
    """List, check, prepare and clean up the sandboxes of rollouts."""


sandbox.add_command(check)
sandbox.add_command(
    EnvironmentCommand(
        "prepare",
        prepare_command,
        help=f"{HELP}\n\nENVIRONMENT is a name of `hermes-rl env list`, FILE.py, FILE.py:CLASS or "
        "MODULE:CLASS. List all options with: hermes-rl sandbox prepare ENVIRONMENT --help",
        options_metavar="ENVIRONMENT [OPTIONS]",
    )
)


@dataclass(frozen=True, slots=True)
class _ListedBackend:
    name: str
    reason: str
    capabilities: Capabilities | None


@sandbox.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_backends(as_json: bool) -> None:
    """List the backends, whether each works on this machine, and its capabilities.

    Starts a sandbox of each backend with its default settings. With a modal or daytona account one is started there;
    docker pulls its default image if it is missing.
    """
    listed = run_async(_try_all())
    if as_json:
        echo(fast_json.dumps([_as_dict(backend) for backend in listed]))
        return
    for backend in listed:
        state = f"does not work here: {backend.reason}" if backend.reason else "works here"
        echo(f"{backend.name:<12} {state}")
        if backend.capabilities is not None and not backend.reason:
            echo(f"{'':<12} {_capabilities(backend.capabilities)}")
    echo("Check a backend that needs settings with: hermes-rl sandbox check NAME --setting KEY=VALUE", err=True)


async def _try_all() -> list[_ListedBackend]:
    with progress("trying backends", len(NAMES)) as shown:
        done = 0

        async def try_backend(name: str) -> _ListedBackend:
            nonlocal done
            try:
                return await _try(name)
            finally:
                done += 1
                shown.show(done, name)

        return await asyncio.gather(*map(try_backend, NAMES))


async def _try(name: str) -> _ListedBackend:
    try:
        backend = make_backend(name)
    except ConfigError as error:
        return _ListedBackend(name, str(error), None)
    reason = ""
    try:
        async with asyncio.timeout(PROBE_TIME):
            await backend.probe()
    except TimeoutError:
        reason = f"no sandbox was ready within {PROBE_TIME:.0f} s"
    except (SandboxError, ConfigError) as error:
        reason = str(error)
    finally:
        await backend.close()
    return _ListedBackend(name, reason, backend.capabilities)


def _capabilities(can: Capabilities) -> str:
    isolated = " and ".join(["files"] * can.isolates_files + ["processes"] * can.isolates_processes)
    network = " or ".join(["off"] * can.network_off + ["on"] * can.network_on)
    texts = [f"isolates {isolated}" if isolated else "NO SANDBOX: isolates nothing"]
    texts.append(f"network {network or 'as on the host'}")
    texts.append(f"limits {', '.join(sorted(can.limits))}" if can.limits else "no limits")
    texts += ["images"] * can.images + ["root user"] * can.root_user + ["writable root"] * can.writable_root
    texts += ["host folders"] * can.folders
    return "; ".join(texts)


def _as_dict(backend: _ListedBackend) -> dict[str, Any]:
    can = backend.capabilities
    flags = {field.name: getattr(can, field.name) for field in fields(Capabilities)} if can is not None else None
    if flags is not None:
        flags["limits"] = sorted(flags["limits"])
    return {"name": backend.name, "works": not backend.reason, "reason": backend.reason, "capabilities": flags}


@sandbox.command("reap")
@click.option("--dry-run", is_flag=True, help="List what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reap_sandboxes(dry_run: bool, as_json: bool) -> int:
    """Remove sandboxes left behind by killed processes.

    Touches only sandboxes of dead processes that are listed in the ledgers in ~/.hermes/rl/sandboxes. Runs also do this
    at their start and every five minutes. The exit code is 1 if something could not be removed.
    """
    reaped = run_async(reap(dry_run=dry_run))
    if as_json:
        echo(fast_json.dumps(_reaped_as_dict(reaped, dry_run)))
    else:
        for entry in reaped.removed:
            echo(f"{'would remove' if dry_run else 'removed'} {_named(entry)}")
        for entry, reason in reaped.left:
            echo(f"could not remove {_named(entry)}: {reason}")
        verb = "would be removed" if dry_run else "removed"
        left = f", {len(reaped.left)} could not be removed" if reaped.left else ""
        echo(f"{len(reaped.removed)} sandboxes of {reaped.owners} dead processes {verb}{left}")
    return 1 if reaped.left else 0


def _named(entry: LedgerEntry) -> str:
    return f"{entry.name} ({entry.backend})"


def _reaped_as_dict(reaped: ReapResult, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "owners": reaped.owners,
        "removed": [{"name": entry.name, "backend": entry.backend} for entry in reaped.removed],
        "left": [{"name": entry.name, "backend": entry.backend, "reason": reason} for entry, reason in reaped.left],
    }

"""How sandboxes end: once and for good, whoever closes them and when, leaving nothing."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hermes_rl.errors import SandboxError
from hermes_rl.home import rl_home
from hermes_rl.sandbox.conformance.check import (
    GRACE,
    BrokenPromiseError,
    Group,
    NotClaimedError,
    Trial,
    must,
    nap,
    run,
    same,
    says,
    written,
)
from hermes_rl.sandbox.protocol import Sandbox

GROUP = Group("lifetime")


@GROUP.on_sandbox
async def alive_tells_the_truth(sandbox: Sandbox) -> None:
    """A sandbox is alive until it is closed."""
    same("alive before", await sandbox.alive(), True)
    await sandbox.close()
    same("alive after", await sandbox.alive(), False)


@GROUP.on_sandbox
async def closing_twice_is_harmless(sandbox: Sandbox) -> None:
    """Closing a sandbox again does nothing."""
    for _ in range(3):
        await sandbox.close()


@GROUP.on_sandbox
async def closing_at_once_is_harmless(sandbox: Sandbox) -> None:
    """Several tasks can close a sandbox at once; all return when it is closed."""
    await asyncio.gather(*(sandbox.close() for _ in range(5)))
    same("alive", await sandbox.alive(), False)


@GROUP.on_sandbox
async def cancelled_close_still_closes(sandbox: Sandbox) -> None:
    """A close that was cancelled can be waited for again, and the sandbox is closed."""
    closing = asyncio.ensure_future(sandbox.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await sandbox.close()
    same("alive", await sandbox.alive(), False)


@GROUP.on_sandbox
async def closed_sandbox_refuses(sandbox: Sandbox) -> None:
    """After close every call is a SandboxError with the cause `closed`."""
    await sandbox.close()
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "exec": lambda: run(sandbox, "true"),
        "read": lambda: sandbox.read("file"),
        "write": lambda: sandbox.write("file", b""),
        "end_processes": sandbox.end_processes,
    }
    for name, call in calls.items():
        try:
            await call()
        except SandboxError as error:
            same(f"the cause of the error of {name}", error.cause, "closed")
        else:
            raise BrokenPromiseError(f"{name} succeeded on a closed sandbox")


@GROUP.on_sandbox
async def close_is_heard_by_a_running_command(sandbox: Sandbox) -> None:
    """A command that runs while its sandbox is closed ends as a SandboxError, soon."""
    running = asyncio.ensure_future(run(sandbox, "echo began > file; sleep 600"))
    await written(sandbox, "file", b"began\n")
    await sandbox.close()
    done, _ = await asyncio.wait([running], timeout=GRACE)
    running.cancel()
    must(done, f"the command still ran {GRACE:g} s later")
    must(isinstance(running.exception(), SandboxError), "it did not end as a SandboxError")


@GROUP.on_sandbox
async def close_ends_every_process(sandbox: Sandbox) -> None:
    """After close none of its processes is left on this machine."""
    sleep, mark = nap()
    await run(sandbox, f"{sleep} & setsid {sleep} & (setsid {sleep} &)")
    if not _here(mark):
        raise NotClaimedError("its processes cannot be seen from this machine")
    await sandbox.close()
    same("the processes left", _here(mark), 0)


@GROUP.on_backend()
async def leaving_the_block_closes(trial: Trial) -> None:
    """`async with` closes the sandbox, also when its body raises."""
    sandbox = await trial.start()
    try:
        async with sandbox:
            raise LookupError
    except LookupError:
        pass
    same("alive", await sandbox.alive(), False)


@GROUP.on_backend()
async def closing_one_spares_the_others(trial: Trial) -> None:
    """Closing a sandbox leaves others as they are."""
    one, other = await trial.start(), await trial.start()
    running = asyncio.ensure_future(run(other, "sleep 1; echo survived"))
    await one.close()
    same("the other's command", (await running).stdout, b"survived\n")
    same("the other alive", await other.alive(), True)


@GROUP.on_backend()
async def closing_the_backend_closes_all(trial: Trial) -> None:
    """Closing the backend closes all its sandboxes, and it starts new ones afterwards."""
    sandboxes = [await trial.start() for _ in range(3)]
    await trial.backend.close()
    same("alive", [await sandbox.alive() for sandbox in sandboxes], [False] * 3)
    await says(await trial.start(), "echo new", b"new\n")


@GROUP.on_backend()
async def closing_gives_descriptors_back(trial: Trial) -> None:
    """Starting and closing sandboxes does not use up file descriptors of our process."""
    for _ in range(2):
        await (await trial.start()).close()
    before = _descriptors()
    for _ in range(5):
        sandbox = await trial.start()
        await run(sandbox, "sleep 600 &")
        await sandbox.close()
    must(_descriptors() <= before + 2, f"{before} were open before five sandboxes, {_descriptors()} after them")


@GROUP.on_backend()
async def ledger_has_it_while_it_lives(trial: Trial) -> None:
    """A sandbox is in the ledger from its start until its close, so that nothing is lost when we die."""
    before = _entries(trial)
    sandbox = await trial.start()
    must(_entries(trial).keys() - before.keys(), "a living sandbox is not in the ledger")
    await sandbox.close()
    left = _entries(trial).keys() - before.keys()
    must(not left, f"a closed sandbox is still in the ledger: {left}")


@GROUP.on_backend()
async def reaping_what_is_gone_is_harmless(trial: Trial) -> None:
    """Reaping a sandbox that is gone already does nothing, also twice, and the backend goes on."""
    before = _entries(trial)
    sandbox = await trial.start()
    entries = [entry for name, entry in _entries(trial).items() if name not in before]
    if not entries:
        raise NotClaimedError("the backend writes no ledger, so nothing of it can be reaped")
    await sandbox.close()
    for entry in entries * 2:
        await trial.backend.reap(entry["resources"])
    await says(await trial.start(), "echo well", b"well\n")


def _entries(trial: Trial) -> dict[str, Any]:
    """What stands in the ledgers of this process, by name."""
    found: dict[str, Any] = {}
    for path in (trial.ledger or rl_home() / "sandboxes").glob(f"{os.getpid()}-*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record.get("ended"):
                found.pop(record["name"], None)
            else:
                found[record["name"]] = record
    return found


def _here(mark: str) -> int:
    """How many processes of this machine have this word among their arguments."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += mark.encode() in path.read_bytes()
        except OSError:
            continue
    return count


def _descriptors() -> int:
    return len(os.listdir("/dev/fd"))

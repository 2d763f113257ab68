"""How sandboxes end: closing is final and leaves nothing behind, no matter who closes them or when."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import SandboxError
from hermes_rl.core.paths import rl_home
from hermes_rl.sandbox.conformance.check import (
    GRACE,
    CheckContext,
    CheckFailedError,
    CheckGroup,
    NotClaimedError,
    require,
    require_equal,
    require_output,
    run,
    sleep_command,
    wait_for_content,
)
from hermes_rl.sandbox.protocol import Sandbox

GROUP = CheckGroup("lifetime")


@GROUP.on_sandbox
async def alive_is_accurate(sandbox: Sandbox) -> None:
    """alive() is true until the sandbox is closed."""
    require_equal("alive before", await sandbox.alive(), True)
    await sandbox.close()
    require_equal("alive after", await sandbox.alive(), False)


@GROUP.on_sandbox
async def closing_twice_is_harmless(sandbox: Sandbox) -> None:
    """Closing a sandbox again does nothing."""
    for _ in range(3):
        await sandbox.close()


@GROUP.on_sandbox
async def concurrent_close_is_harmless(sandbox: Sandbox) -> None:
    """Several tasks can close a sandbox concurrently; all return once it is closed."""
    await asyncio.gather(*(sandbox.close() for _ in range(5)))
    require_equal("alive", await sandbox.alive(), False)


@GROUP.on_sandbox
async def cancelled_close_still_closes(sandbox: Sandbox) -> None:
    """After a cancelled close, closing again completes it."""
    closing = asyncio.ensure_future(sandbox.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await sandbox.close()
    require_equal("alive", await sandbox.alive(), False)


@GROUP.on_sandbox
async def closed_sandbox_raises(sandbox: Sandbox) -> None:
    """After close every call raises SandboxError with the cause `closed`."""
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
            require_equal(f"the cause of the error of {name}", error.cause, "closed")
        else:
            raise CheckFailedError(f"{name} succeeded on a closed sandbox")


@GROUP.on_sandbox
async def close_fails_running_command(sandbox: Sandbox) -> None:
    """A running command fails soon with SandboxError when its sandbox is closed."""
    running = asyncio.ensure_future(run(sandbox, "echo began > file; sleep 600"))
    await wait_for_content(sandbox, "file", b"began\n")
    await sandbox.close()
    done, _ = await asyncio.wait([running], timeout=GRACE)
    running.cancel()
    require(done, f"the command was still running after {GRACE:g} s")
    require(isinstance(running.exception(), SandboxError), "it did not raise SandboxError")


@GROUP.on_sandbox
async def close_ends_every_process(sandbox: Sandbox) -> None:
    """After close none of its processes is left on this machine."""
    sleep, marker = sleep_command()
    await run(sandbox, f"{sleep} & setsid {sleep} & (setsid {sleep} &)")
    if not _count_on_host(marker):
        raise NotClaimedError("its processes are not visible from this machine")
    await sandbox.close()
    require_equal("the processes left", _count_on_host(marker), 0)


@GROUP.on_backend()
async def async_with_closes(context: CheckContext) -> None:
    """`async with` closes the sandbox, also if the body raises."""
    sandbox = await context.start()
    try:
        async with sandbox:
            raise LookupError
    except LookupError:
        pass
    require_equal("alive", await sandbox.alive(), False)


@GROUP.on_backend()
async def closing_one_keeps_others(context: CheckContext) -> None:
    """Closing a sandbox does not affect others."""
    one, other = await context.start(), await context.start()
    running = asyncio.ensure_future(run(other, "sleep 1; echo survived"))
    await one.close()
    require_equal("the other's command", (await running).stdout, b"survived\n")
    require_equal("the other alive", await other.alive(), True)


@GROUP.on_backend()
async def closing_backend_closes_all(context: CheckContext) -> None:
    """Closing the backend closes all its sandboxes, and it can start new ones afterwards."""
    sandboxes = [await context.start() for _ in range(3)]
    await context.backend.close()
    require_equal("alive", [await sandbox.alive() for sandbox in sandboxes], [False] * 3)
    await require_output(await context.start(), "echo new", b"new\n")


@GROUP.on_backend()
async def closing_frees_descriptors(context: CheckContext) -> None:
    """Starting and closing sandboxes does not leak file descriptors."""
    for _ in range(2):
        await (await context.start()).close()
    before = _count_open_fds()
    for _ in range(5):
        sandbox = await context.start()
        await run(sandbox, "sleep 600 &")
        await sandbox.close()
    require(
        _count_open_fds() <= before + 2,
        f"{before} descriptors were open before five sandboxes, {_count_open_fds()} after",
    )


@GROUP.on_backend()
async def ledger_lists_live_sandbox(context: CheckContext) -> None:
    """A sandbox is in the ledger from start to close, so that it can be removed if we die."""
    before = _ledger_entries(context)
    sandbox = await context.start()
    require(_ledger_entries(context).keys() - before.keys(), "a live sandbox is not in the ledger")
    await sandbox.close()
    left = _ledger_entries(context).keys() - before.keys()
    require(not left, f"a closed sandbox is still in the ledger: {left}")


@GROUP.on_backend()
async def reaping_twice_is_harmless(context: CheckContext) -> None:
    """Reaping a sandbox that is already gone, even twice, does nothing, and the backend keeps working."""
    before = _ledger_entries(context)
    sandbox = await context.start()
    entries = [entry for name, entry in _ledger_entries(context).items() if name not in before]
    if not entries:
        raise NotClaimedError("the backend writes no ledger, so there is nothing to reap")
    await sandbox.close()
    for entry in entries * 2:
        await context.backend.reap(entry["resources"])
    await require_output(await context.start(), "echo well", b"well\n")


def _ledger_entries(context: CheckContext) -> dict[str, Any]:
    """The live entries in the ledgers of this process, by name."""
    entries: dict[str, Any] = {}
    for path in (context.ledger or rl_home() / "sandboxes").glob(f"{os.getpid()}-*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record.get("ended"):
                entries.pop(record["name"], None)
            else:
                entries[record["name"]] = record
    return entries


def _count_on_host(marker: str) -> int:
    """How many processes of this machine have this text in their arguments."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += marker.encode() in path.read_bytes()
        except OSError:
            continue
    return count


def _count_open_fds() -> int:
    return len(os.listdir("/dev/fd"))

"""Timeouts and cancellation: the command returns in time, and its process tree, and nothing else, is dead."""

import asyncio
import time

from hermes_rl.sandbox.conformance.check import (
    GRACE,
    CheckGroup,
    count_processes,
    require,
    require_equal,
    require_output,
    run,
    sleep_command,
    wait_for,
)
from hermes_rl.sandbox.protocol import TIMEOUT_EXIT_CODE, ExecResult, Sandbox

GROUP = CheckGroup("timeouts and killing")

_SHORT_TIMEOUT = 1.5


@GROUP.on_sandbox
async def timeout_returns_in_time(sandbox: Sandbox) -> None:
    """A command that times out returns soon, with exit code 124, marked as timed out."""
    await _run_to_timeout(sandbox, "sleep 600")


@GROUP.on_sandbox
async def timeout_keeps_output(sandbox: Sandbox) -> None:
    """Output written before the timeout is returned, on both streams."""
    result = await _run_to_timeout(sandbox, "echo out; printf half; echo err >&2; sleep 600")
    require_equal("stdout and stderr", (result.stdout, result.stderr), (b"out\nhalf", b"err\n"))


@GROUP.on_sandbox
async def timeout_kills_children(sandbox: Sandbox) -> None:
    """A timeout kills the command's children, in the foreground and in the background."""
    sleep, marker = sleep_command()
    await _run_to_timeout(sandbox, f"{sleep} & sh -c '{sleep}' & {sleep}")
    await _require_all_dead(sandbox, marker)


@GROUP.on_sandbox
async def timeout_kills_other_sessions(sandbox: Sandbox) -> None:
    """A timeout kills children in sessions of their own."""
    sleep, marker = sleep_command()
    await _run_to_timeout(sandbox, f"setsid {sleep} & nohup setsid {sleep} >/dev/null 2>&1 & sleep 600")
    await _require_all_dead(sandbox, marker)


@GROUP.on_sandbox
async def timeout_kills_orphans(sandbox: Sandbox) -> None:
    """A timeout kills children that were detached by a double fork, even with an empty environment."""
    sleep, marker = sleep_command()
    await _run_to_timeout(sandbox, f"(setsid sh -c '{sleep} & {sleep}' &); (env -i setsid {sleep} &); sleep 600")
    await _require_all_dead(sandbox, marker)


@GROUP.on_sandbox
async def timeout_kills_despite_ignored_signals(sandbox: Sandbox) -> None:
    """A timeout kills a command that ignores SIGTERM, SIGINT and SIGHUP."""
    sleep, marker = sleep_command()
    await _run_to_timeout(sandbox, f"trap '' TERM INT HUP QUIT; {sleep}; {sleep}; {sleep}")
    await _require_all_dead(sandbox, marker)


@GROUP.on_sandbox
async def timeout_kills_stopped_processes(sandbox: Sandbox) -> None:
    """A timeout kills a command that stopped itself and its children."""
    sleep, marker = sleep_command()
    await _run_to_timeout(sandbox, f"{sleep} & kill -STOP $!; kill -STOP $$")
    await _require_all_dead(sandbox, marker)


@GROUP.on_sandbox
async def timeout_ends_endless_writer(sandbox: Sandbox) -> None:
    """A command that writes endlessly returns in time, with its output truncated at max_output."""
    result = await _run_to_timeout(sandbox, "yes", max_output=100_000)
    require_equal("length and truncated", (len(result.stdout), result.truncated), (100_000, True))


@GROUP.on_sandbox
async def timeout_with_unread_stdin_returns(sandbox: Sandbox) -> None:
    """A command that does not read its 5 MB of stdin returns in time."""
    await _run_to_timeout(sandbox, "sleep 600", stdin=bytes(5_000_000))


@GROUP.on_sandbox
async def timeout_spares_other_commands(sandbox: Sandbox) -> None:
    """A timeout does not affect other commands and their background processes."""
    sleep, marker = sleep_command()
    await run(sandbox, f"setsid {sleep} >/dev/null 2>&1 &")
    other = asyncio.ensure_future(run(sandbox, f"sleep {2 * _SHORT_TIMEOUT}; echo survived"))
    try:
        await _run_to_timeout(sandbox, "setsid sleep 600 & sleep 600")
        require_equal("the other command's output", (await other).stdout, b"survived\n")
    finally:
        other.cancel()
    require(await count_processes(sandbox, marker) == 1, "the background process of another command was killed")


@GROUP.on_sandbox
async def timeout_leaves_sandbox_usable(sandbox: Sandbox) -> None:
    """After a timeout the sandbox runs further commands, and the files are as the command left them."""
    await _run_to_timeout(sandbox, "echo kept > file; sleep 600")
    require(await sandbox.alive(), "alive() is False")
    await require_output(sandbox, "cat file", b"kept\n")


@GROUP.on_sandbox
async def cancellation_kills_tree(sandbox: Sandbox) -> None:
    """Cancelling a running command kills its process tree before CancelledError is raised."""
    sleep, marker = sleep_command()
    running = asyncio.ensure_future(run(sandbox, f"(setsid {sleep} &); {sleep} & {sleep}"))
    await _wait_for_processes(sandbox, marker, 3)
    began = time.monotonic()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    require(running.cancelled(), "the command did not raise CancelledError")
    require(time.monotonic() - began < GRACE, f"it took {time.monotonic() - began:.1f} s")
    await _require_all_dead(sandbox, marker)


@GROUP.on_sandbox
async def early_cancellation_leaves_no_process(sandbox: Sandbox) -> None:
    """A command cancelled while it starts leaves no process, and the sandbox keeps working."""
    sleep, marker = sleep_command()
    for delay in (0.0, 0.001, 0.005, 0.02):
        running = asyncio.ensure_future(run(sandbox, f"setsid {sleep} & {sleep}"))
        await asyncio.sleep(delay)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await _require_all_dead(sandbox, marker)
    await require_output(sandbox, "echo on", b"on\n")


async def _run_to_timeout(sandbox: Sandbox, command: str, **options: object) -> ExecResult:
    began = time.monotonic()
    result = await run(sandbox, command, timeout=_SHORT_TIMEOUT, **options)
    took = time.monotonic() - began
    require_equal("exit code and timed_out", (result.exit_code, result.timed_out), (TIMEOUT_EXIT_CODE, True))
    require(took >= 0.9 * _SHORT_TIMEOUT, f"it returned after {took:.2f} s, before its timeout of {_SHORT_TIMEOUT} s")
    require(took < _SHORT_TIMEOUT + GRACE, f"it returned {took - _SHORT_TIMEOUT:.1f} s after its timeout")
    return result


async def _require_all_dead(sandbox: Sandbox, marker: str) -> None:
    left = await count_processes(sandbox, marker)
    require(left == 0, f"{left} of its processes are still alive")


async def _wait_for_processes(sandbox: Sandbox, marker: str, count: int) -> None:
    async def have_started() -> bool:
        return await count_processes(sandbox, marker) >= count

    await wait_for(f"{count} processes", have_started)

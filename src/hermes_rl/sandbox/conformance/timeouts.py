"""What a time-out and a cancellation promise: the command returns in time, its whole tree is dead, and nothing else."""

import asyncio
import time

from hermes_rl.sandbox.conformance.check import GRACE, Group, comes, living, must, nap, run, same, says
from hermes_rl.sandbox.protocol import TIMEOUT_EXIT_CODE, ExecResult, Sandbox

GROUP = Group("timeouts and killing")

_SHORT = 1.5


@GROUP.on_sandbox
async def timeout_returns_in_time(sandbox: Sandbox) -> None:
    """A command that runs out of time returns soon, with exit code 124, and is called timed out."""
    await _timed_out(sandbox, "sleep 600")


@GROUP.on_sandbox
async def timeout_keeps_the_output(sandbox: Sandbox) -> None:
    """What a command wrote before its time-out is kept, on both streams."""
    result = await _timed_out(sandbox, "echo out; printf half; echo err >&2; sleep 600")
    same("stdout and stderr", (result.stdout, result.stderr), (b"out\nhalf", b"err\n"))


@GROUP.on_sandbox
async def timeout_kills_children(sandbox: Sandbox) -> None:
    """After a time-out the command's children are dead, in the foreground and in the background."""
    sleep, mark = nap()
    await _timed_out(sandbox, f"{sleep} & sh -c '{sleep}' & {sleep}")
    await _none_lives(sandbox, mark)


@GROUP.on_sandbox
async def timeout_kills_other_sessions(sandbox: Sandbox) -> None:
    """After a time-out children that made sessions of their own are dead."""
    sleep, mark = nap()
    await _timed_out(sandbox, f"setsid {sleep} & nohup setsid {sleep} >/dev/null 2>&1 & sleep 600")
    await _none_lives(sandbox, mark)


@GROUP.on_sandbox
async def timeout_kills_orphans(sandbox: Sandbox) -> None:
    """After a time-out children that left their parents by a double fork, with an empty environment, are dead."""
    sleep, mark = nap()
    await _timed_out(sandbox, f"(setsid sh -c '{sleep} & {sleep}' &); (env -i setsid {sleep} &); sleep 600")
    await _none_lives(sandbox, mark)


@GROUP.on_sandbox
async def timeout_kills_what_ignores_signals(sandbox: Sandbox) -> None:
    """A command that ignores SIGTERM, SIGINT and SIGHUP is killed all the same."""
    sleep, mark = nap()
    await _timed_out(sandbox, f"trap '' TERM INT HUP QUIT; {sleep}; {sleep}; {sleep}")
    await _none_lives(sandbox, mark)


@GROUP.on_sandbox
async def timeout_kills_what_is_stopped(sandbox: Sandbox) -> None:
    """A command that stopped itself and its children is killed all the same."""
    sleep, mark = nap()
    await _timed_out(sandbox, f"{sleep} & kill -STOP $!; kill -STOP $$")
    await _none_lives(sandbox, mark)


@GROUP.on_sandbox
async def timeout_ends_an_endless_writer(sandbox: Sandbox) -> None:
    """A command that writes without end returns in time, its output cut at max_output."""
    result = await _timed_out(sandbox, "yes", max_output=100_000)
    same("length and truncated", (len(result.stdout), result.truncated), (100_000, True))


@GROUP.on_sandbox
async def timeout_with_unread_stdin_returns(sandbox: Sandbox) -> None:
    """A command that does not read its 5 MB of input returns in time."""
    await _timed_out(sandbox, "sleep 600", stdin=bytes(5_000_000))


@GROUP.on_sandbox
async def timeout_spares_other_commands(sandbox: Sandbox) -> None:
    """A time-out leaves other running commands and their background processes alone."""
    sleep, mark = nap()
    await run(sandbox, f"setsid {sleep} >/dev/null 2>&1 &")
    other = asyncio.ensure_future(run(sandbox, f"sleep {2 * _SHORT}; echo survived"))
    try:
        await _timed_out(sandbox, "setsid sleep 600 & sleep 600")
        same("the other command's output", (await other).stdout, b"survived\n")
    finally:
        other.cancel()
    must(await living(sandbox, mark) == 1, "the background process of another command was killed")


@GROUP.on_sandbox
async def timeout_leaves_the_sandbox_usable(sandbox: Sandbox) -> None:
    """After a time-out the sandbox runs the next commands, and its files are as the command left them."""
    await _timed_out(sandbox, "echo kept > file; sleep 600")
    must(await sandbox.alive(), "the sandbox says that it is dead")
    await says(sandbox, "cat file", b"kept\n")


@GROUP.on_sandbox
async def cancellation_kills_the_tree(sandbox: Sandbox) -> None:
    """When a running command is cancelled its whole tree is dead before the cancellation is seen."""
    sleep, mark = nap()
    running = asyncio.ensure_future(run(sandbox, f"(setsid {sleep} &); {sleep} & {sleep}"))
    await _appears(sandbox, mark, 3)
    began = time.monotonic()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    must(running.cancelled(), "the command did not end as cancelled")
    must(time.monotonic() - began < GRACE, f"it took {time.monotonic() - began:.1f} s")
    await _none_lives(sandbox, mark)


@GROUP.on_sandbox
async def early_cancellation_leaves_nothing(sandbox: Sandbox) -> None:
    """A command that is cancelled while it starts leaves no process, and the sandbox goes on."""
    sleep, mark = nap()
    for delay in (0.0, 0.001, 0.005, 0.02):
        running = asyncio.ensure_future(run(sandbox, f"setsid {sleep} & {sleep}"))
        await asyncio.sleep(delay)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await _none_lives(sandbox, mark)
    await says(sandbox, "echo on", b"on\n")


async def _timed_out(sandbox: Sandbox, command: str, **options: object) -> ExecResult:
    began = time.monotonic()
    result = await run(sandbox, command, timeout=_SHORT, **options)
    took = time.monotonic() - began
    same("exit code and timed_out", (result.exit_code, result.timed_out), (TIMEOUT_EXIT_CODE, True))
    must(took >= 0.9 * _SHORT, f"it returned after {took:.2f} s, before its time-out of {_SHORT} s")
    must(took < _SHORT + GRACE, f"it returned {took - _SHORT:.1f} s after its time-out")
    return result


async def _none_lives(sandbox: Sandbox, mark: str) -> None:
    left = await living(sandbox, mark)
    must(left == 0, f"{left} of its processes still live")


async def _appears(sandbox: Sandbox, mark: str, count: int) -> None:
    async def met() -> bool:
        return await living(sandbox, mark) >= count

    await comes(f"{count} processes", met)

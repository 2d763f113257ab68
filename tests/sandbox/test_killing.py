import asyncio
import os
import signal
import time

import pytest

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.process_tree import children
from hermes_rl.sandbox.protocol import Backend, Sandbox
from tests.sandbox.living import living, nap

ESCAPES = {
    "child": "{nap} & wait",
    "own session": "setsid {nap} & wait",
    "double fork": "(setsid sh -c '{nap} & {nap}' &) ; sleep 600",
    "stopped": "{nap} & kill -STOP $$",
    "ignores signals": "trap '' TERM INT HUP; {nap}; {nap}",
}


@pytest.mark.parametrize("escape", ESCAPES)
async def test_a_timeout_kills_the_whole_tree_and_keeps_the_output(sandbox: Sandbox, escape: str) -> None:
    mine = nap()
    began = time.monotonic()
    result = await sandbox.exec(f"echo before; {ESCAPES[escape].format(nap=mine)}", timeout=0.4)
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, b"before\n")
    assert living(mine) == []
    assert time.monotonic() - began < 30


async def test_a_timeout_kills_a_child_that_threw_its_environment_away(jail: Sandbox) -> None:
    mine = nap()
    assert (await jail.exec(f"(env -i setsid {mine} &); sleep 600", timeout=0.4)).timed_out
    assert living(mine) == []


async def test_a_timeout_kills_a_fork_bomb_and_the_sandbox_goes_on(jail: Sandbox) -> None:
    # Bounded, so that a failing test does not take the machine with it.
    bomb = "ulimit -u 400; b() { (b & b &) 2>/dev/null; sleep 0.01; }; b; sleep 600"
    assert (await jail.exec(bomb, timeout=0.5)).timed_out
    await jail.end_processes()
    assert (await jail.exec("echo alive", timeout=10)).stdout == b"alive\n"


async def test_a_timeout_spares_other_commands_and_their_background_children(sandbox: Sandbox) -> None:
    server, mine = nap(), nap()
    await sandbox.exec(f"setsid {server} >/dev/null 2>&1 &", timeout=10)
    other = asyncio.ensure_future(sandbox.exec("sleep 1.2; echo survived", timeout=10))
    await asyncio.sleep(0.1)
    assert (await sandbox.exec(f"setsid {mine} & sleep 600", timeout=0.4)).timed_out
    assert (await other).stdout == b"survived\n"
    assert living(mine) == []
    assert len(living(server)) == 1


async def test_a_cancelled_command_is_killed_before_the_cancellation_is_seen(sandbox: Sandbox) -> None:
    mine = nap()
    running = asyncio.ensure_future(sandbox.exec(f"setsid {mine} & sleep 600", timeout=60))
    while not living(mine):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert living(mine) == []
    assert (await sandbox.exec("echo on", timeout=10)).stdout == b"on\n"


async def test_a_command_cancelled_while_it_starts_leaves_nothing(sandbox: Sandbox) -> None:
    mine = nap()
    # Each moment of the start is met by some: one in sixty left a process when its keeper was killed last.
    for number in range(150):
        running = asyncio.ensure_future(sandbox.exec(f"setsid {mine} & {mine}", timeout=60))
        await asyncio.sleep(number % 30 * 0.0002)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        # What was left would need a moment to show its arguments.
        await asyncio.sleep(0.01)
        assert living(mine) == []


async def test_end_processes_kills_everything_and_keeps_the_files(sandbox: Sandbox) -> None:
    mine = nap()
    await sandbox.exec(f"echo kept > file; setsid {mine} & (setsid {mine} &); {mine} &", timeout=10)
    assert len(living(mine)) == 3
    await sandbox.end_processes()
    assert living(mine) == []
    assert await sandbox.read("file") == b"kept\n"


async def test_close_kills_everything_and_a_running_command_hears_of_it(backend: Backend) -> None:
    mine = nap()
    sandbox = await backend.start()
    running = asyncio.ensure_future(sandbox.exec(f"setsid {mine} & {mine}", timeout=60))
    while len(living(mine)) < 2:
        await asyncio.sleep(0.01)
    await sandbox.close()
    with pytest.raises(SandboxError):
        await running
    assert living(mine) == []


async def test_close_is_idempotent_and_ends_the_sandbox(backend: Backend) -> None:
    sandbox = await backend.start()
    assert await sandbox.alive()
    await asyncio.gather(sandbox.close(), sandbox.close())
    await sandbox.close()
    assert not await sandbox.alive()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.exec("true", timeout=10)


async def test_a_cancelled_close_still_closes(backend: Backend) -> None:
    mine = nap()
    sandbox = await backend.start()
    await sandbox.exec(f"mkdir -p a/b; {mine} &", timeout=10)
    closing = asyncio.ensure_future(sandbox.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await sandbox.close()
    assert living(mine) == []


async def test_a_sandbox_that_does_not_answer_is_noticed_before_its_command_ends(
    bubblewrap: BubblewrapBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.sandbox.guest_agent.client._WATCH_EVERY", 0.1)
    monkeypatch.setattr("hermes_rl.sandbox.guest_agent.client._WATCH_TIME", 0.5)
    async with await bubblewrap.start() as jail:
        running = asyncio.ensure_future(jail.exec("sleep 600", timeout=600))
        await asyncio.sleep(0.2)
        os.kill(children(jail._transport.pid)[0], signal.SIGSTOP)
        with pytest.raises(SandboxError) as hang:
            await running
        assert hang.value.cause == "hang"

"""What a command leaves behind: it lives until the sandbox closes, troubles nobody, and end_processes ends it."""

import asyncio
import time

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.conformance.check import GRACE, Group, living, must, nap, run, same, says, written
from hermes_rl.sandbox.protocol import Sandbox

GROUP = Group("background processes")


@GROUP.on_sandbox
async def background_does_not_delay(sandbox: Sandbox) -> None:
    """A command returns although a child of it still runs and holds its output open."""
    began = time.monotonic()
    result = await run(sandbox, "sleep 600 & echo done")
    same("the output", result.stdout, b"done\n")
    must(time.monotonic() - began < GRACE, f"it took {time.monotonic() - began:.1f} s")


@GROUP.on_sandbox
async def background_lives_on(sandbox: Sandbox) -> None:
    """A process left in the background outlives its command."""
    sleep, mark = nap()
    await run(sandbox, f"{sleep} & setsid {sleep} >/dev/null 2>&1 &")
    await asyncio.sleep(0.5)
    same("the living processes", await living(sandbox, mark), 2)


@GROUP.on_sandbox
async def background_can_be_reached(sandbox: Sandbox) -> None:
    """The next command can talk to a process in the background, and end it."""
    server = 'mkfifo in out; (while read -r line < in; do echo "heard $line" > out; done) >/dev/null 2>&1 & echo $!'
    pid = (await run(sandbox, server)).stdout.decode().strip()
    await says(sandbox, "echo hello > in; cat out", b"heard hello\n")
    await says(sandbox, f"kill -0 {pid} && kill {pid} && echo ended", b"ended\n")


@GROUP.on_sandbox
async def background_output_reaches_nobody_else(sandbox: Sandbox) -> None:
    """What a background process writes after its command ended is not in the output of others."""
    await run(sandbox, "(while sleep 0.02; do echo noise; echo noise >&2; done) & true")
    for _ in range(5):
        result = await run(sandbox, "sleep 0.1; echo mine")
        same("stdout and stderr", (result.stdout, result.stderr), (b"mine\n", b""))


@GROUP.on_sandbox
async def background_output_does_not_block(sandbox: Sandbox) -> None:
    """A background process that goes on writing is neither stopped nor ended by it."""
    await run(sandbox, "(for i in $(seq 40); do head -c 50000 /dev/zero; done; echo written > file) & true")
    await written(sandbox, "file", b"written\n")


@GROUP.on_sandbox
async def end_processes_kills_everything(sandbox: Sandbox) -> None:
    """end_processes kills whatever runs, also in other sessions, ignoring signals, or stopped."""
    sleep, mark = nap()
    await run(sandbox, f"{sleep} & setsid {sleep} & (setsid {sleep} &); (trap '' TERM; {sleep}; {sleep}) & ")
    await run(sandbox, f"{sleep} & kill -STOP $!")
    must(await living(sandbox, mark) >= 5, "the processes did not start")
    await sandbox.end_processes()
    same("the living processes", await living(sandbox, mark), 0)


@GROUP.on_sandbox
async def end_processes_keeps_the_files(sandbox: Sandbox) -> None:
    """After end_processes the files are there and the sandbox goes on; doing it again is harmless."""
    await run(sandbox, "mkdir d; echo kept > d/file; sleep 600 &")
    await sandbox.end_processes()
    await sandbox.end_processes()
    must(await sandbox.alive(), "the sandbox says that it is dead")
    await says(sandbox, "cat d/file", b"kept\n")


@GROUP.on_sandbox
async def end_processes_ends_a_running_command(sandbox: Sandbox) -> None:
    """A command that runs during end_processes ends soon, and not well."""
    running = asyncio.ensure_future(run(sandbox, "echo began > file; sleep 600"))
    await written(sandbox, "file", b"began\n")
    await sandbox.end_processes()
    try:
        async with asyncio.timeout(GRACE):
            must((await running).exit_code != 0, "it ended with exit code 0")
    except SandboxError:
        return
    except TimeoutError:
        must(False, f"it still ran {GRACE:g} s later")

"""Background processes: they live until close or end_processes, and do not affect other commands."""

import asyncio
import time

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.conformance.check import (
    GRACE,
    CheckGroup,
    count_processes,
    require,
    require_equal,
    require_output,
    run,
    sleep_command,
    wait_for_content,
)
from hermes_rl.sandbox.protocol import Sandbox

GROUP = CheckGroup("background processes")


@GROUP.on_sandbox
async def background_process_does_not_delay_command(sandbox: Sandbox) -> None:
    """A command returns while a child still runs and holds its output open."""
    began = time.monotonic()
    result = await run(sandbox, "sleep 600 & echo done")
    require_equal("the output", result.stdout, b"done\n")
    require(time.monotonic() - began < GRACE, f"it took {time.monotonic() - began:.1f} s")


@GROUP.on_sandbox
async def background_process_outlives_command(sandbox: Sandbox) -> None:
    """A background process outlives its command."""
    sleep, marker = sleep_command()
    await run(sandbox, f"{sleep} & setsid {sleep} >/dev/null 2>&1 &")
    await asyncio.sleep(0.5)
    require_equal("the number of live processes", await count_processes(sandbox, marker), 2)


@GROUP.on_sandbox
async def background_process_is_reachable(sandbox: Sandbox) -> None:
    """The next command can communicate with a background process and kill it."""
    server = 'mkfifo in out; (while read -r line < in; do echo "got $line" > out; done) >/dev/null 2>&1 & echo $!'
    pid = (await run(sandbox, server)).stdout.decode().strip()
    await require_output(sandbox, "echo hello > in; cat out", b"got hello\n")
    await require_output(sandbox, f"kill -0 {pid} && kill {pid} && echo ended", b"ended\n")


@GROUP.on_sandbox
async def background_output_is_not_mixed_in(sandbox: Sandbox) -> None:
    """Output of a background process does not appear in the output of later commands."""
    await run(sandbox, "(while sleep 0.02; do echo noise; echo noise >&2; done) & true")
    for _ in range(5):
        result = await run(sandbox, "sleep 0.1; echo mine")
        require_equal("stdout and stderr", (result.stdout, result.stderr), (b"mine\n", b""))


@GROUP.on_sandbox
async def background_output_does_not_block(sandbox: Sandbox) -> None:
    """A background process that keeps writing is neither blocked nor killed by it."""
    await run(sandbox, "(for i in $(seq 40); do head -c 50000 /dev/zero; done; echo written > file) & true")
    await wait_for_content(sandbox, "file", b"written\n")


@GROUP.on_sandbox
async def end_processes_kills_everything(sandbox: Sandbox) -> None:
    """end_processes kills all processes, including those in other sessions, ignoring signals, or stopped."""
    sleep, marker = sleep_command()
    await run(sandbox, f"{sleep} & setsid {sleep} & (setsid {sleep} &); (trap '' TERM; {sleep}; {sleep}) & ")
    await run(sandbox, f"{sleep} & kill -STOP $!")
    require(await count_processes(sandbox, marker) >= 5, "the processes did not start")
    await sandbox.end_processes()
    require_equal("the number of live processes", await count_processes(sandbox, marker), 0)


@GROUP.on_sandbox
async def end_processes_keeps_files(sandbox: Sandbox) -> None:
    """After end_processes the files remain and the sandbox keeps working; a second call is harmless."""
    await run(sandbox, "mkdir d; echo kept > d/file; sleep 600 &")
    await sandbox.end_processes()
    await sandbox.end_processes()
    require(await sandbox.alive(), "alive() is False")
    await require_output(sandbox, "cat d/file", b"kept\n")


@GROUP.on_sandbox
async def end_processes_ends_running_command(sandbox: Sandbox) -> None:
    """A command that runs during end_processes ends soon, with a failure."""
    running = asyncio.ensure_future(run(sandbox, "echo began > file; sleep 600"))
    await wait_for_content(sandbox, "file", b"began\n")
    await sandbox.end_processes()
    try:
        async with asyncio.timeout(GRACE):
            require((await running).exit_code != 0, "it exited with 0")
    except SandboxError:
        return
    except TimeoutError:
        require(False, f"it was still running after {GRACE:g} s")

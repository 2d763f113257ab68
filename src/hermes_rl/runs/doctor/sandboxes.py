"""Which sandboxes work on this machine, really started, and those that dead processes left.

Always true: nothing is started in a cloud, and no image is fetched as long as bubblewrap works.
"""

import asyncio
import shutil
import sys

from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.runs.doctor.finding import Finding, State
from hermes_rl.sandbox.backends import AUTO, make_backend
from hermes_rl.sandbox.reaper import reap

# Those with a program of their own on this machine.
PROGRAMS = {"docker": ("docker",), "podman": ("podman",), "singularity": ("apptainer", "singularity")}
_PROBE_S, _VERSION_S = 60.0, 15.0
_INSTALL = "sudo apt-get install bubblewrap" if sys.platform == "linux" else "open https://docs.docker.com/get-docker"


async def sandboxes() -> list[Finding]:
    fault = await _started_fault("bubblewrap")
    others = await asyncio.gather(*(_program(name, programs) for name, programs in PROGRAMS.items()))
    if fault is None:
        return [Finding("sandbox bubblewrap", State.OK, "a sandbox was started, and ran a command"), *others]
    first = Finding("sandbox bubblewrap", State.ABSENT, fault, _INSTALL if sys.platform == "linux" else None)
    # `auto` goes on to docker, so whether that works is worth the while that an image may take.
    why = await _started_fault("docker")
    if why is None:
        started = Finding("sandbox docker", State.OK, "a sandbox was started, and ran a command")
        return [first, started, *(one for one in others if one.check != started.check)]
    need = f"none of {', '.join(AUTO)} works here, so no rollout can run commands. docker: {why}"
    return [first, *others, Finding("sandbox", State.MISSING, need, _INSTALL)]


async def left_sandboxes() -> list[Finding]:
    left = await reap(dry_run=True)
    if not left.removed:
        return [Finding("left sandboxes", State.OK, "no dead process left any")]
    what = f"{len(left.removed)} sandboxes of {left.owners} dead processes; the next run removes them too"
    return [Finding("left sandboxes", State.WARN, what, "hermes-rl sandbox reap")]


async def _started_fault(name: str) -> str | None:
    """Why no sandbox of the backend starts; None when one did."""
    try:
        backend = make_backend(name)
    except ConfigError as error:
        return str(error)
    try:
        async with asyncio.timeout(_PROBE_S):
            await backend.probe()
    except TimeoutError:
        return f"no sandbox was ready after {_PROBE_S:.0f} s"
    except (SandboxError, ConfigError) as error:
        return str(error)
    finally:
        await backend.close()
    return None


async def _program(name: str, programs: tuple[str, ...]) -> Finding:
    """Whether an engine's program is there and answers. It starts nothing."""
    check, found = f"sandbox {name}", next(filter(None, map(shutil.which, programs)), None)
    if found is None:
        return Finding(check, State.ABSENT, f"no program {' or '.join(programs)}; for terminal_backend {name}")
    again = f"{found} version"
    process = await asyncio.create_subprocess_exec(
        found,
        "version",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_VERSION_S):
            _, complaint = await process.communicate()
    except TimeoutError:
        return Finding(check, State.WARN, f"{found} did not answer within {_VERSION_S:.0f} s", again)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = (complaint.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        return Finding(check, State.ABSENT, f"{found} is there and does not work: {said}", again)
    return Finding(check, State.OK, f"{found} answers; to try it: hermes-rl sandbox check {name}")

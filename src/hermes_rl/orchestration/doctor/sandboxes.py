"""Checks of sandbox backends, by starting a sandbox, and of sandboxes that dead processes left behind.

Always true: nothing is started in a cloud, and no image is pulled as long as bubblewrap works.
"""

import asyncio
import shutil
import sys

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.orchestration.doctor.finding import DoctorFinding, FindingState
from hermes_rl.sandbox.backends.registry import AUTO, make_backend
from hermes_rl.sandbox.reaper import reap

# Backends with a local command-line program.
PROGRAMS = {"docker": ("docker",), "podman": ("podman",), "singularity": ("apptainer", "singularity")}
_PROBE_S, _VERSION_S = 60.0, 15.0
_INSTALL = "sudo apt-get install bubblewrap" if sys.platform == "linux" else "open https://docs.docker.com/get-docker"


async def sandboxes() -> list[DoctorFinding]:
    problem = await _start_problem("bubblewrap")
    others = await asyncio.gather(*(_program(name, programs) for name, programs in PROGRAMS.items()))
    if problem is None:
        return [DoctorFinding("sandbox bubblewrap", FindingState.OK, "a sandbox started and ran a command"), *others]
    first = DoctorFinding(
        "sandbox bubblewrap", FindingState.ABSENT, problem, _INSTALL if sys.platform == "linux" else None
    )
    # `auto` falls back to docker, so it is checked too, although that may pull an image.
    docker_problem = await _start_problem("docker")
    if docker_problem is None:
        started = DoctorFinding("sandbox docker", FindingState.OK, "a sandbox started and ran a command")
        return [first, started, *(finding for finding in others if finding.check != started.check)]
    what = f"none of {', '.join(AUTO)} works here, so no rollout can run commands. docker: {docker_problem}"
    return [first, *others, DoctorFinding("sandbox", FindingState.MISSING, what, _INSTALL)]


async def leftover_sandboxes() -> list[DoctorFinding]:
    leftover = await reap(dry_run=True)
    if not leftover.removed:
        return [DoctorFinding("left sandboxes", FindingState.OK, "none from dead processes")]
    what = f"{len(leftover.removed)} sandboxes of {leftover.owners} dead processes; the next run removes them too"
    return [DoctorFinding("left sandboxes", FindingState.WARN, what, "hermes-rl sandbox reap")]


async def _start_problem(name: str) -> str | None:
    """Why a sandbox of the backend does not start; None if it does."""
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


async def _program(name: str, programs: tuple[str, ...]) -> DoctorFinding:
    """Whether an engine's program is installed and responds, without starting a sandbox."""
    check, found = f"sandbox {name}", next(filter(None, map(shutil.which, programs)), None)
    if found is None:
        return DoctorFinding(
            check, FindingState.ABSENT, f"no program {' or '.join(programs)}; for terminal_backend {name}"
        )
    retry = f"{found} version"
    process = await asyncio.create_subprocess_exec(
        found,
        "version",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_VERSION_S):
            _, stderr = await process.communicate()
    except TimeoutError:
        return DoctorFinding(check, FindingState.WARN, f"{found} did not respond within {_VERSION_S:.0f} s", retry)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        error = (stderr.decode(errors="replace").strip().splitlines() or ["no error message"])[-1]
        return DoctorFinding(check, FindingState.ABSENT, f"{found} is installed but does not work: {error}", retry)
    return DoctorFinding(check, FindingState.OK, f"{found} responds; to try it: hermes-rl sandbox check {name}")

"""Fifty live sandboxes of each backend, `kill -9` of their owner, then the reaper: what is left is counted and printed.

As root, on a machine that does nothing else, since everything on it is counted: processes, containers, mounts, control
groups, directories, ledgers. Exit status 1 when anything is left. `python -m tests.chaos.killed_owner [BACKEND…]`
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hermes_rl.sandbox.backends.registry import make_backend
from hermes_rl.sandbox.reaper import reap
from tests.sandbox.living import living, nap
from tests.support.sandbox_parts import IMAGE, DockerDaemon, PodmanService, SshServer, find_parts

BACKENDS = ("local", "bubblewrap", "docker", "docker+runsc", "podman", "ssh", "singularity", "modal", "daytona")
SETTLE = 30.0
OWNER = """
    import asyncio, json, sys
    from hermes_rl.sandbox.backends.registry import make_backend

    async def main(name, settings, count, nap):
        backend = make_backend(name, json.loads(settings))
        turns = asyncio.Semaphore(8)

        async def start():
            async with turns:
                sandbox = await backend.start()
                await sandbox.exec(f"echo kept > file; setsid {nap} > /dev/null 2>&1 &", timeout=60)

        await asyncio.gather(*(start() for _ in range(int(count))))
        print("ready", flush=True)
        await asyncio.sleep(3600)

    asyncio.run(main(*sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Count:
    """What can be left of sandboxes. gVisor's processes are its containers'."""

    processes: int
    containers: int
    mounts: int
    control_groups: int
    directories: int
    ledgers: int


class Ground:
    """Where one backend's sandboxes live, and how they are counted there."""

    def __init__(self, settings: dict[str, Any], server: Any = None, environment: dict[str, str] | None = None) -> None:
        self.settings = settings
        self.environment = environment or {}
        self._server = server

    def count(self, home: Path, mine: str) -> Count:
        groups = sum(len(folders) for _, folders, _ in os.walk("/sys/fs/cgroup"))
        mounts = len(Path("/proc/self/mountinfo").read_text().splitlines())
        containers = 0
        if isinstance(self._server, DockerDaemon | PodmanService):
            containers = len(self._server.containers())
            mounts += len(Path(f"/proc/{self._server.pid}/mountinfo").read_text().splitlines())
        elif self._server is not None and hasattr(self._server, "sandboxes"):
            containers = len(self._server.sandboxes)
        places = [home, Path(tempfile.gettempdir())]
        directories = sum(len(list(place.glob("hermes-rl-[0-9a-f]*"))) for place in places)
        ledgers = len(list((home / "rl" / "sandboxes").glob("*")))
        return Count(len(living(mine)), containers, mounts, groups, directories, ledgers)


@asynccontextmanager
async def ground(backend: str) -> AsyncIterator[Ground]:
    if backend in {"local", "bubblewrap"}:
        yield Ground({})
    elif backend == "ssh":
        with SshServer() as ssh:
            told = {"host": ssh.host, "port": ssh.port, "username": ssh.username}
            yield Ground({**told, "key": str(ssh.key), "known_hosts": str(ssh.known_hosts)}, ssh)
    elif backend == "singularity":
        parts = find_parts()
        yield Ground({"image": str(parts.root), "binary": str(parts.apptainer)})
    elif backend == "podman":
        with PodmanService(find_parts().image) as podman:
            yield Ground({"url": podman.url, "image": IMAGE}, podman)
    elif backend.startswith("docker"):
        parts = find_parts()
        with DockerDaemon(parts.image, parts.runsc) as docker:
            runtime = {"runtime": "runsc"} if backend.endswith("runsc") else {}
            yield Ground({"url": docker.url, "image": IMAGE, **runtime}, docker)
    elif backend == "modal":
        from tests.support.modal_cloud import ModalCloud

        async with ModalCloud() as modal:
            yield Ground({}, modal, modal.environment)
    else:
        from tests.support.daytona_cloud import DaytonaCloud

        async with DaytonaCloud() as daytona:
            yield Ground({}, daytona, daytona.environment)


async def kill_an_owner(backend: str, count: int) -> bool:
    name = backend.partition("+")[0]
    with tempfile.TemporaryDirectory(prefix="killed-owner-") as place:
        home, mine = Path(place), nap()
        async with ground(backend) as where:
            os.environ |= where.environment
            # An engine makes a parent group of its own for its first container, and keeps it.
            backend_once = make_backend(name, where.settings)
            await (await backend_once.start()).close()
            await backend_once.close()
            before = where.count(home, mine)
            code = textwrap.dedent(OWNER)
            words = [sys.executable, "-c", code, name, json.dumps(where.settings), str(count), mine]
            told = {"HERMES_HOME": place, "TMPDIR": place}
            owner = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, env={**os.environ, **told})
            assert owner.stdout is not None
            assert await owner.stdout.readline() == b"ready\n"
            alive = where.count(home, mine)
            owner.kill()
            await owner.wait()
            reaped = await reap(home / "rl" / "sandboxes")
            until = time.monotonic() + SETTLE
            after = where.count(home, mine)
            while after != before and time.monotonic() < until:
                await asyncio.sleep(0.5)
                after = where.count(home, mine)
        clean = after == before and not reaped.left
        print(f"{backend}: {'nothing left' if clean else 'LEFT BEHIND'}; {len(reaped.removed)} in the ledger")
        for moment, counted in (("before", before), ("alive", alive), ("after", after)):
            print(f"  {moment:6} {' '.join(f'{key}={value}' for key, value in asdict(counted).items())}", flush=True)
        return clean


async def main(backends: list[str], count: int) -> int:
    clean = [await kill_an_owner(backend, count) for backend in backends]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", default=list(BACKENDS), metavar="BACKEND")
    parser.add_argument("--count", type=int, default=50)
    arguments = parser.parse_args()
    sys.exit(asyncio.run(main(arguments.backends, arguments.count)))

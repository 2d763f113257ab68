"""The image store of this machine: unpacked root directories, and the baked results of a spec's setup.

Always true: an entry of the store is complete or absent, and is built once, however many tasks and processes ask for it
at the same time. A failure is raised to all waiters and not remembered.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.core.paths import images_home
from hermes_rl.sandbox.guest_agent.client import AGENT_ID, PATH
from hermes_rl.sandbox.images import rootfs
from hermes_rl.sandbox.images.materialize import Image, archive_workspace, files_outside, materialize
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.sandbox.subprocess_vfork import shield_until_done
from hermes_rl.sandbox.workspaces import remove_tree

__all__ = ["Image", "ImageBuilder", "ImageStore", "Report", "materialize"]

Report = Callable[[str], object]

_LOCK_PAUSE = 0.1
# Longer than the granularity of the kernel's file timestamps.
_TICK = 0.05
# Every user of this machine can reach a baked root, so it is owned by root, without setuid/setgid bits or write access
# for others. What the agent could read it can still read.
_RESTRICT_PERMISSIONS = f"""
    find "$1" -uid {AGENT_ID} ! -type l -exec chmod o=u -- {{}} +
    if [ "$(id -u)" = 0 ]; then find "$1" '(' ! -uid 0 -o ! -gid 0 ')' -exec chown -h 0:0 -- {{}} + ; fi
    find "$1" ! -type l -perm /6022 -exec chmod ug-s,go-w -- {{}} +
"""


@dataclass(frozen=True, slots=True)
class ImageBuilder:
    """How a backend starts the sandbox in which a spec is baked; `name` separates the results of different backends.

    `start` gets the spec without files and setup, and a copy of the image's root directory to mount writable, where
    root runs the setup; or None if only the workspace will be kept.
    """

    name: str
    start: Callable[[SandboxSpec, Path | None], Awaitable[Sandbox]]


class ImageStore:
    """The images of this machine. Without a builder nothing is baked: files and setup are left to `materialize`."""

    def __init__(self, builder: ImageBuilder | None = None, directory: Path | None = None) -> None:
        self.directory = directory or images_home()
        self._builder = builder
        self._building: dict[Path, asyncio.Task[None]] = {}

    async def image(self, spec: SandboxSpec, report: Report = lambda _: None) -> Image:
        """The image of a spec, built if it is missing. Building continues if the caller is cancelled."""
        root, identity = await self._base(spec.image, report) if spec.image else (None, "")
        builder, outside = self._builder, files_outside(spec)
        if builder is None or not (spec.setup or outside):
            return Image(root, spec)
        if outside and root is None:
            raise ConfigError(
                f"sandbox_spec puts {outside[0]} outside the workspace, which the backend {builder.name} can do only "
                "with an image: name an image, or a path below the workspace"
            )
        inputs = json.dumps([builder.name, identity, spec.digest, spec.network, sorted(spec.env.items())])
        key = hashlib.sha256(inputs.encode()).hexdigest()[:32]
        baked = await self._get_entry("baked", key, lambda part: _bake(part, builder, spec, root, report), report)
        baked_root = baked / "root"
        return Image(baked_root if baked_root.is_dir() else root, spec, baked / "workspace.tar")

    async def close(self) -> None:
        """Cancel all builds."""
        building = tuple(self._building.values())
        for task in building:
            task.cancel()
        await asyncio.gather(*building, return_exceptions=True)

    async def _base(self, image: str, report: Report) -> tuple[Path, str]:
        """The root directory of an image, and a string that identifies its content."""
        path, status = _stat_image(image)
        if stat.S_ISDIR(status.st_mode):
            return path, f"{path} {status.st_ino} {status.st_mtime_ns}"
        identity = f"{path} {status.st_ino} {status.st_mtime_ns} {status.st_size}"
        known = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        entry = await self._get_entry("known", known, lambda part: _hash(path, part), report)
        digest = (entry / "hash").read_text()
        unpacked = await self._get_entry(
            "unpacked", digest[:32], lambda part: _unpack(path, part / "root", report), report
        )
        return unpacked / "root", digest

    async def _get_entry(self, kind: str, name: str, fill: Callable[[Path], Awaitable[None]], report: Report) -> Path:
        """A directory of the store, filled by the first caller."""
        entry = self.directory / kind / name
        if not entry.is_dir():
            if entry not in self._building:
                self._start_build(entry, self._fill(entry, fill, report))
            await _wait_shared(self._building[entry])
        os.utime(entry)
        return entry

    def _start_build(self, entry: Path, work: Coroutine[Any, Any, None]) -> None:
        def on_done(task: "asyncio.Task[None]") -> None:
            del self._building[entry]
            # Mark the exception as retrieved: there may be no waiter left.
            if not task.cancelled():
                task.exception()

        self._building[entry] = asyncio.create_task(work)
        self._building[entry].add_done_callback(on_done)

    async def _fill(self, entry: Path, fill: Callable[[Path], Awaitable[None]], report: Report) -> None:
        try:
            _make_directories(entry.parent)
            async with _file_lock(entry.with_name(f"{entry.name}.lock"), report):
                await _fill_entry(entry, fill)
        except OSError as error:
            raise SandboxError(
                "start", f"cannot write to {self.directory}: {error}; set HERMES_HOME to move it"
            ) from error


async def _wait_shared(task: "asyncio.Task[None]") -> None:
    """Wait for a task that others wait for too: it continues if we are cancelled."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        this = asyncio.current_task()
        if this is None or this.cancelling():
            raise
        raise SandboxError("closed", "the backend was closed while it prepared an image") from None


def _make_directories(directory: Path) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        # Sandbox users, who know the name of an entry, can enter but not list it.
        path.chmod(0o711)


def _stat_image(image: str) -> tuple[Path, os.stat_result]:
    path = Path(image).expanduser().resolve()
    try:
        return path, path.stat()
    except OSError as error:
        raise ConfigError(
            f"the image {path} cannot be read: {error.strerror}. For this backend an image is a directory, or a tar "
            "archive of one (docker export, docker save, mmdebstrap)"
        ) from error


async def _fill_entry(entry: Path, fill: Callable[[Path], Awaitable[None]]) -> None:
    part = entry.with_name(f"{entry.name}.part")
    if entry.is_dir():  # noqa: ASYNC240 - one local directory
        return
    # Left by a process that died.
    await remove_tree(part)
    part.mkdir(mode=0o700)
    try:
        await fill(part)
        part.chmod(0o711)
        part.rename(entry)
    except BaseException:
        await shield_until_done(remove_tree(part))
        raise


@asynccontextmanager
async def _file_lock(path: Path, report: Report) -> AsyncIterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    waiting = False
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    report("waiting for another process that is preparing the same")
                waiting = True
                await asyncio.sleep(_LOCK_PAUSE)
        yield
    finally:
        os.close(fd)


async def _hash(archive: Path, part: Path) -> None:
    digest = await _run_rootfs("hash", archive)
    (part / "hash").write_text(digest.strip())


async def _unpack(archive: Path, root: Path, report: Report) -> None:
    report(f"unpacking {archive}")
    await _run_rootfs("unpack", archive, root, on_line=lambda line: report(f"unpacked {line}"))


async def _run_rootfs(job: str, archive: Path, *more: Path, on_line: Report = lambda _: None) -> str:
    argv = python_command(rootfs.__file__, job, str(archive), *map(str, more), isolated=True)
    code, stdout, stderr = await _run(argv, on_line)
    if code == rootfs.BAD_ARCHIVE:
        raise ConfigError(f"the image {archive} cannot be used: {stderr}")
    if code != 0:
        raise SandboxError("start", f"the image {archive} could not be unpacked: {stderr}")
    return stdout


async def _bake(part: Path, builder: ImageBuilder, spec: SandboxSpec, base: Path | None, report: Report) -> None:
    root = None
    if base is not None:
        root = part / "root"
        report(f"copying {base}")
        await _run_checked(["cp", "-a", "--reflink=auto", "--", f"{base}/.", str(root)])
    report("running the setup of sandbox_spec")
    async with await builder.start(replace(spec, files={}, setup=None), root) as sandbox:
        began = time.time()
        await asyncio.sleep(_TICK)
        await materialize(sandbox, Image(root, spec))
        await sandbox.end_processes()
        await archive_workspace(sandbox, part / "workspace.tar")
    if root is None:
        return
    if await _run_checked(["find", str(root), "-newerct", f"@{began}", "-print", "-quit"]):
        await _run_checked(["/bin/sh", "-ec", _RESTRICT_PERMISSIONS, "sh", str(root)])
    else:
        await remove_tree(root)


async def _run_checked(argv: Sequence[str]) -> str:
    code, stdout, stderr = await _run(argv)
    if code != 0:
        raise SandboxError("setup", f"{argv[0]} exited with {code}: {stderr}")
    return stdout


async def _run(argv: Sequence[str], on_line: Report = lambda _: None) -> tuple[int, str, str]:
    """Run a program. Returns its exit code, stdout and the end of stderr; `on_line` gets each line of stdout."""
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": PATH, "LC_ALL": "C.UTF-8"},
        cwd="/",
    )

    async def read_lines(stream: asyncio.StreamReader | None) -> str:
        text = ""
        while stream is not None and (line := await stream.readline()):
            on_line(line.decode(errors="replace").strip())
            text += line.decode(errors="replace")
        return text

    try:
        stdout, stderr = await asyncio.gather(read_lines(child.stdout), _tail(child.stderr))
        return await child.wait(), stdout, stderr
    finally:
        if child.returncode is None:
            child.kill()
            await shield_until_done(child.wait())


async def _tail(stream: asyncio.StreamReader | None) -> str:
    tail = b""
    while stream is not None and (chunk := await stream.read(4096)):
        tail = (tail + chunk)[-2000:]
    return tail.decode(errors="replace").strip()

"""Images on this machine: unpacked root directories, and what a spec's setup left when it was baked.

Always true: an entry of the store is complete or not there, and made once, however many ask for it at the same time in
however many processes. A failure is told to everybody who waits for it and then forgotten.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.home import images_home
from hermes_rl.sandbox import unpacking
from hermes_rl.sandbox.child import to_the_end
from hermes_rl.sandbox.layout import Image, collect, files_outside, lay_out
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.sandbox.warden import AGENT_ID, PATH
from hermes_rl.sandbox.workspaces import remove_tree

__all__ = ["Image", "ImageStore", "Kitchen", "Say", "lay_out"]

Say = Callable[[str], object]

_LOCK_PAUSE = 0.1
# Longer than a tick of the clock that the kernel stamps files with.
_TICK = 0.05
# A baked root can be reached by every user of this machine, so it shall be root's, without set-id bits or others' write
# access. What the agent could read it can still read.
_CLOSE_TO_OTHERS = f"""
    find "$1" -uid {AGENT_ID} ! -type l -exec chmod o=u -- {{}} +
    if [ "$(id -u)" = 0 ]; then find "$1" '(' ! -uid 0 -o ! -gid 0 ')' -exec chown -h 0:0 -- {{}} + ; fi
    find "$1" ! -type l -perm /6022 -exec chmod ug-s,go-w -- {{}} +
"""


@dataclass(frozen=True, slots=True)
class Kitchen:
    """How a backend starts the sandbox in which a spec is baked; `name` keeps what different backends bake apart.

    `start` gets the spec without files and setup, and a copy of the image's root directory, to be made writable, where
    the setup is run by root; or None where only the workspace will be kept.
    """

    name: str
    start: Callable[[SandboxSpec, Path | None], Awaitable[Sandbox]]


class ImageStore:
    """The images of this machine. Without a kitchen nothing is baked: files and setup are left to `lay_out`."""

    def __init__(self, kitchen: Kitchen | None = None, directory: Path | None = None) -> None:
        self.directory = directory or images_home()
        self._kitchen = kitchen
        self._making: dict[Path, asyncio.Task[None]] = {}

    async def image(self, spec: SandboxSpec, say: Say = lambda _: None) -> Image:
        """What a spec needs, made if it is not there yet; making goes on when whoever asked is cancelled."""
        root, identity = await self._base(spec.image, say) if spec.image else (None, "")
        kitchen, outside = self._kitchen, files_outside(spec)
        if kitchen is None or not (spec.setup or outside):
            return Image(root, spec)
        if outside and root is None:
            raise ConfigError(
                f"sandbox_spec puts {outside[0]} outside the workspace, which the backend {kitchen.name} can do only "
                "with an image: name an image, or a path below the workspace"
            )
        told = json.dumps([kitchen.name, identity, spec.digest, spec.network, sorted(spec.env.items())])
        key = hashlib.sha256(told.encode()).hexdigest()[:32]
        baked = await self._entry("baked", key, lambda part: _bake(part, kitchen, spec, root, say), say)
        own_root = baked / "root"
        return Image(own_root if own_root.is_dir() else root, spec, baked / "workspace.tar")

    async def close(self) -> None:
        """Give up what is being made."""
        making = tuple(self._making.values())
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)

    async def _base(self, named: str, say: Say) -> tuple[Path, str]:
        """The root directory of an image, and what tells it from every other."""
        path, seen = _seen(named)
        if stat.S_ISDIR(seen.st_mode):
            return path, f"{path} {seen.st_ino} {seen.st_mtime_ns}"
        about = f"{path} {seen.st_ino} {seen.st_mtime_ns} {seen.st_size}"
        known = hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        entry = await self._entry("known", known, lambda part: _hash(path, part), say)
        digest = (entry / "hash").read_text()
        unpacked = await self._entry("unpacked", digest[:32], lambda part: _unpack(path, part / "root", say), say)
        return unpacked / "root", digest

    async def _entry(self, kind: str, name: str, fill: Callable[[Path], Awaitable[None]], say: Say) -> Path:
        """A directory of the store, filled by whoever comes first."""
        entry = self.directory / kind / name
        if not entry.is_dir():
            if entry not in self._making:
                self._make(entry, self._fill(entry, fill, say))
            await _shared(self._making[entry])
        os.utime(entry)
        return entry

    def _make(self, entry: Path, work: Coroutine[Any, Any, None]) -> None:
        def made(task: "asyncio.Task[None]") -> None:
            del self._making[entry]
            # Whoever still waits gets it; nobody may be left to.
            if not task.cancelled():
                task.exception()

        self._making[entry] = asyncio.create_task(work)
        self._making[entry].add_done_callback(made)

    async def _fill(self, entry: Path, fill: Callable[[Path], Awaitable[None]], say: Say) -> None:
        try:
            _make_directories(entry.parent)
            async with _locked(entry.with_name(f"{entry.name}.lock"), say):
                await _fill_new(entry, fill)
        except OSError as error:
            raise SandboxError(
                "start", f"cannot write to {self.directory}: {error}; HERMES_HOME moves it to another place"
            ) from error


async def _shared(task: "asyncio.Task[None]") -> None:
    """Wait for work that others wait for too: it goes on when we are cancelled."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        this = asyncio.current_task()
        if this is None or this.cancelling():
            raise
        raise SandboxError("closed", "the backend was closed while it prepared an image") from None


def _make_directories(directory: Path) -> None:
    missing = [one for one in (directory, *directory.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        # Open to the users of sandboxes, who know an entry's name, and listed to nobody else.
        one.chmod(0o711)


def _seen(image: str) -> tuple[Path, os.stat_result]:
    path = Path(image).expanduser().resolve()
    try:
        return path, path.stat()
    except OSError as error:
        raise ConfigError(
            f"the image {path} cannot be read: {error.strerror}. For this backend an image is a directory, or a tar "
            "archive of one (docker export, docker save, mmdebstrap)"
        ) from error


async def _fill_new(entry: Path, fill: Callable[[Path], Awaitable[None]]) -> None:
    part = entry.with_name(f"{entry.name}.part")
    if entry.is_dir():  # noqa: ASYNC240 - one local directory
        return
    # Left by one who died over it.
    await remove_tree(part)
    part.mkdir(mode=0o700)
    try:
        await fill(part)
        part.chmod(0o711)
        part.rename(entry)
    except BaseException:
        await to_the_end(remove_tree(part))
        raise


@asynccontextmanager
async def _locked(path: Path, say: Say) -> AsyncIterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    waits = False
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waits:
                    say("waiting for another process that prepares the same")
                waits = True
                await asyncio.sleep(_LOCK_PAUSE)
        yield
    finally:
        os.close(fd)


async def _hash(archive: Path, part: Path) -> None:
    digest = await _unpacking("hash", archive)
    (part / "hash").write_text(digest.strip())


async def _unpack(archive: Path, root: Path, say: Say) -> None:
    say(f"unpacking {archive}")
    await _unpacking("unpack", archive, root, heard=lambda line: say(f"unpacked {line}"))


async def _unpacking(job: str, archive: Path, *more: Path, heard: Say = lambda _: None) -> str:
    words = [sys.executable, "-I", unpacking.__file__, job, str(archive), *map(str, more)]
    code, said, complaint = await _run(words, heard)
    if code == unpacking.BAD_ARCHIVE:
        raise ConfigError(f"the image {archive} cannot be used: {complaint}")
    if code != 0:
        raise SandboxError("start", f"the image {archive} could not be unpacked: {complaint}")
    return said


async def _bake(part: Path, kitchen: Kitchen, spec: SandboxSpec, base: Path | None, say: Say) -> None:
    root = None
    if base is not None:
        root = part / "root"
        say(f"copying {base}")
        await _required(["cp", "-a", "--reflink=auto", "--", f"{base}/.", str(root)])
    say("running the setup of sandbox_spec")
    async with await kitchen.start(replace(spec, files={}, setup=None), root) as sandbox:
        began = time.time()
        await asyncio.sleep(_TICK)
        await lay_out(sandbox, Image(root, spec))
        await sandbox.end_processes()
        await collect(sandbox, part / "workspace.tar")
    if root is None:
        return
    if await _required(["find", str(root), "-newerct", f"@{began}", "-print", "-quit"]):
        await _required(["/bin/sh", "-ec", _CLOSE_TO_OTHERS, "sh", str(root)])
    else:
        await remove_tree(root)


async def _required(argv: Sequence[str]) -> str:
    code, said, complaint = await _run(argv)
    if code != 0:
        raise SandboxError("setup", f"{argv[0]} ended with {code}: {complaint}")
    return said


async def _run(argv: Sequence[str], heard: Say = lambda _: None) -> tuple[int, str, str]:
    """Run a program to its end: its exit code, its output, the end of its complaints. Lines of output are `heard`."""
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": PATH, "LC_ALL": "C.UTF-8"},
        cwd="/",
    )

    async def listen(stream: asyncio.StreamReader | None) -> str:
        said = ""
        while stream is not None and (line := await stream.readline()):
            heard(line.decode(errors="replace").strip())
            said += line.decode(errors="replace")
        return said

    try:
        said, complaint = await asyncio.gather(listen(child.stdout), _tail(child.stderr))
        return await child.wait(), said, complaint
    finally:
        if child.returncode is None:
            child.kill()
            await to_the_end(child.wait())


async def _tail(stream: asyncio.StreamReader | None) -> str:
    said = b""
    while stream is not None and (piece := await stream.read(4096)):
        said = (said + piece)[-2000:]
    return said.decode(errors="replace").strip()

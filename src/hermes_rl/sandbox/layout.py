"""What a spec lays over its image, put into a fresh sandbox: its files and its setup, or what both left when baked.

Files travel as one tar archive that is unpacked inside, by a command of the sandbox's own.
"""

import posixpath
import shlex
import tarfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.sandbox.protocol import WORKSPACE, Command, Sandbox
from hermes_rl.sandbox.spec import ROOT, SandboxSpec
from hermes_rl.sandbox.warden import AGENT_ID

SETUP_TIMEOUT = 600.0

_PIECE = 256 * 1024
# What every sandbox makes fresh, so nothing that is put there would stay.
_MADE_FRESH = ("proc", "dev", "sys", "tmp", "run")


@dataclass(frozen=True, slots=True)
class Image:
    """A root directory, or None for the host's own /usr, and the spec whose files and setup are still to be applied.

    With a `workspace`, an archive of what they left there, they are not applied again.
    """

    root: Path | None
    spec: SandboxSpec
    workspace: Path | None = None


async def lay_out(sandbox: Sandbox, image: Image, *, user: str | None = None) -> None:
    """Put a spec's files into a fresh sandbox and run its setup; SandboxError when that fails.

    `user` runs the setup and owns the files outside the workspace; all inside it are the sandbox's own user's.
    """
    if image.workspace is not None:
        await _unpack(sandbox, _read(image.workspace), sandbox.workspace)
        return
    spec = image.spec
    inside, outside = _files(spec)
    if inside:
        await _unpack(sandbox, _archive(spec, inside), sandbox.workspace)
    if outside:
        await _unpack(sandbox, _archive(spec, outside), "/", user)
    if spec.setup:
        await _set_up(sandbox, image, user)
        if user == ROOT:
            own = f"chown -R {AGENT_ID}:{AGENT_ID} -- {shlex.quote(sandbox.workspace)}"
            await sandbox.exec(own, timeout=SETUP_TIMEOUT, user=user)


async def collect(sandbox: Sandbox, archive: Path) -> None:
    """Write all that is in the workspace to an archive that `lay_out` can unpack again."""
    pack = f"exec tar -c -f - -C {shlex.quote(sandbox.workspace)} ."
    with archive.open("xb") as file:
        result = await sandbox.run(Command(pack, SETUP_TIMEOUT, sink=file.write))
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip()
        raise SandboxError("setup", f"the workspace could not be collected after the setup of sandbox_spec: {said}")


def files_outside(spec: SandboxSpec) -> list[str]:
    """The names of a spec's files that are not below the workspace; ConfigError for a place where nothing stays."""
    return list(_files(spec)[1].values())


def _files(spec: SandboxSpec) -> tuple[dict[str, str], dict[str, str]]:
    """The names of a spec's files by their paths: those below the workspace, and those below the root directory."""
    inside, outside = {}, {}
    for name in spec.files:
        whole = posixpath.normpath(posixpath.join(WORKSPACE, name))
        path = whole.removeprefix(f"{WORKSPACE}/")
        if path != whole:
            inside[path] = name
            continue
        path = whole.lstrip("/")
        if whole == WORKSPACE or path.split("/", maxsplit=1)[0] in {"", *_MADE_FRESH}:
            raise ConfigError(f"sandbox_spec cannot put a file at {name!r}: nothing that is put there stays")
        outside[path] = name
    return inside, outside


async def _set_up(sandbox: Sandbox, image: Image, user: str | None) -> None:
    script = image.spec.setup or ""
    result = await sandbox.exec(script, timeout=SETUP_TIMEOUT, merge_stderr=True, user=user)
    if result.exit_code == 0:
        return
    said = result.stdout.decode(errors="replace").strip()[-2000:]
    how = f"took over {SETUP_TIMEOUT:.0f} s" if result.timed_out else f"ended with {result.exit_code}"
    message = f"the setup of sandbox_spec {how}: {said}"
    if image.root is None and "Read-only file system" in said:
        message += ". Without an image a setup can only write to its workspace: name an image in sandbox_spec"
    raise SandboxError("setup", message)


async def _unpack(sandbox: Sandbox, archive: AsyncIterator[bytes], directory: str, user: str | None = None) -> None:
    unpack = f"exec tar -x -p -o -f - -C {shlex.quote(directory)}"
    result = await sandbox.exec(unpack, stdin=archive, timeout=SETUP_TIMEOUT, user=user)
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip()[-2000:]
        raise SandboxError("start", f"the files of sandbox_spec could not be put into {directory}: {said}")


async def _read(archive: Path) -> AsyncIterator[bytes]:
    with archive.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


async def _archive(spec: SandboxSpec, names: dict[str, str]) -> AsyncIterator[bytes]:
    for path, name in names.items():
        content = spec.content(name)
        about = tarfile.TarInfo(path)
        about.size, about.mtime = len(content), int(time.time())
        yield about.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)

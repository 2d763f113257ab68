"""Applies a spec to a fresh sandbox: writes its files and runs its setup, or unpacks the baked result of both.

Files are sent as one tar archive, unpacked by a command inside the sandbox.
"""

import posixpath
import shlex
import tarfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.guest_agent.client import AGENT_ID
from hermes_rl.sandbox.protocol import WORKSPACE, Command, Sandbox
from hermes_rl.sandbox.spec import ROOT, SandboxSpec

SETUP_TIMEOUT = 600.0

_CHUNK = 256 * 1024
# Fresh in every sandbox, so files put there would not stay.
_EPHEMERAL = ("proc", "dev", "sys", "tmp", "run")


@dataclass(frozen=True, slots=True)
class Image:
    """A root directory, or None for the host's own /usr, and the spec to apply.

    `workspace` is an archive of the baked workspace: with it, files and setup are not applied again.
    """

    root: Path | None
    spec: SandboxSpec
    workspace: Path | None = None


async def materialize(sandbox: Sandbox, image: Image, *, user: str | None = None) -> None:
    """Write a spec's files into a fresh sandbox and run its setup; SandboxError if that fails.

    `user` runs the setup and owns files outside the workspace; files in the workspace belong to the sandbox's user.
    """
    if image.workspace is not None:
        await _unpack(sandbox, _read_chunks(image.workspace), sandbox.workspace)
        return
    spec = image.spec
    inside, outside = _split_files(spec)
    if inside:
        await _unpack(sandbox, _tar_files(spec, inside), sandbox.workspace)
    if outside:
        await _unpack(sandbox, _tar_files(spec, outside), "/", user)
    if spec.setup:
        await _run_setup(sandbox, image, user)
        if user == ROOT:
            chown = f"chown -R {AGENT_ID}:{AGENT_ID} -- {shlex.quote(sandbox.workspace)}"
            await sandbox.exec(chown, timeout=SETUP_TIMEOUT, user=user)


async def archive_workspace(sandbox: Sandbox, archive: Path) -> None:
    """Write the workspace to an archive that `materialize` can unpack."""
    pack = f"exec tar -c -f - -C {shlex.quote(sandbox.workspace)} ."
    with archive.open("xb") as file:
        result = await sandbox.run(Command(pack, SETUP_TIMEOUT, sink=file.write))
    if result.exit_code != 0:
        stderr = result.stderr.decode(errors="replace").strip()
        raise SandboxError("setup", f"cannot archive the workspace after the setup of sandbox_spec: {stderr}")


def files_outside(spec: SandboxSpec) -> list[str]:
    """The names of a spec's files outside the workspace; ConfigError for a path where files do not stay."""
    return list(_split_files(spec)[1].values())


def _split_files(spec: SandboxSpec) -> tuple[dict[str, str], dict[str, str]]:
    """Path -> name of a spec's files: those in the workspace, and those outside it, relative to the root."""
    inside, outside = {}, {}
    for name in spec.files:
        absolute = posixpath.normpath(posixpath.join(WORKSPACE, name))
        path = absolute.removeprefix(f"{WORKSPACE}/")
        if path != absolute:
            inside[path] = name
            continue
        path = absolute.lstrip("/")
        if absolute == WORKSPACE or path.split("/", maxsplit=1)[0] in {"", *_EPHEMERAL}:
            raise ConfigError(f"sandbox_spec cannot put a file at {name!r}: files there do not stay")
        outside[path] = name
    return inside, outside


async def _run_setup(sandbox: Sandbox, image: Image, user: str | None) -> None:
    script = image.spec.setup or ""
    result = await sandbox.exec(script, timeout=SETUP_TIMEOUT, merge_stderr=True, user=user)
    if result.exit_code == 0:
        return
    output = result.stdout.decode(errors="replace").strip()[-2000:]
    outcome = f"took over {SETUP_TIMEOUT:.0f} s" if result.timed_out else f"ended with {result.exit_code}"
    message = f"the setup of sandbox_spec {outcome}: {output}"
    if image.root is None and "Read-only file system" in output:
        message += ". Without an image a setup can only write to its workspace: name an image in sandbox_spec"
    raise SandboxError("setup", message)


async def _unpack(sandbox: Sandbox, archive: AsyncIterator[bytes], directory: str, user: str | None = None) -> None:
    unpack = f"exec tar -x -p -o -f - -C {shlex.quote(directory)}"
    result = await sandbox.exec(unpack, stdin=archive, timeout=SETUP_TIMEOUT, user=user)
    if result.exit_code != 0:
        stderr = result.stderr.decode(errors="replace").strip()[-2000:]
        raise SandboxError("start", f"cannot write the files of sandbox_spec to {directory}: {stderr}")


async def _read_chunks(archive: Path) -> AsyncIterator[bytes]:
    with archive.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


async def _tar_files(spec: SandboxSpec, names: dict[str, str]) -> AsyncIterator[bytes]:
    for path, name in names.items():
        content = spec.content(name)
        header = tarfile.TarInfo(path)
        header.size, header.mtime = len(content), int(time.time())
        yield header.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)

"""Files that an external agent left, kept with its rollout, so that a changed reward can score them again.

Always true: an archive is complete or absent, holds the files as they were when the agent had ended, and is unpacked
in a sandbox only, never on this machine.
"""

import asyncio
import gzip
import shlex
import tarfile
import time
import zlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from hermes_rl.core import fast_json
from hermes_rl.core.errors import SandboxError
from hermes_rl.core.private_files import open_private, private_folder
from hermes_rl.core.trajectory import Rollout, Span
from hermes_rl.rewards.verification import MAX_ARTIFACT_BYTES, ArtifactError, export_artifact
from hermes_rl.sandbox.protocol import INTERNAL_ENV, Sandbox, file_chunks
from hermes_rl.tools.files import sandbox_path
from hermes_rl.tools.session import ToolSession

ARTIFACTS = "artifacts"
"""Where the metadata of a rollout has the archive: `file`, relative to the folder of the records, and `problems`."""
_MANIFEST = "manifest.json"
_UNPACK_TIMEOUT = 120.0


class _Kept(NamedTuple):
    """A file, or a directory as a tar archive, by the name it was asked for."""

    name: str
    data: IO[bytes]
    is_directory: bool
    executable: bool


async def keep_artifacts(session: ToolSession, names: Sequence[str], folder: Path) -> str | None:
    """Write what exists of `names` to an archive in the folder, and note it in the metadata; returns a problem."""
    began = time.monotonic()
    problems: dict[str, str] = {}
    note: dict[str, Any] = {}
    path = folder / f"{session.task_id}.tar.gz"
    with ExitStack() as opened:
        kept: list[_Kept] = []
        for name in names:
            try:
                kept.append(await _export(await session.sandbox(), name, opened))
            except (ArtifactError, SandboxError) as error:
                problems[name] = str(error)
        if kept:
            try:
                note = {"file": f"{folder.name}/{path.name}", "bytes": await asyncio.to_thread(_pack, path, kept)}
            except OSError as error:
                problems[str(path)] = str(error)
    session.metadata[ARTIFACTS] = {**note, **({"problems": problems} if problems else {})}
    session.record_timing(Span.SANDBOX, "keep artifacts", began)
    return next(iter(problems.values()), None)


async def restore_artifacts(session: ToolSession, rollout: Rollout, folder: Path | None) -> None:
    """Put a rollout's kept files into the session's fresh sandbox, in place of what is there.

    `folder` is the folder of archives of these records. SandboxError when the archive cannot be read.
    """
    file = (rollout.metadata.get(ARTIFACTS) or {}).get("file")
    if file is None or folder is None:
        raise SandboxError(
            "program",
            "the agent was an external program, its tool calls cannot be replayed, and no files were kept: record with "
            "--env.agent_artifacts '[\".\"]', or use --from transcript for a reward that reads only the conversation",
        )
    # Only the last two parts: a record must not name any other file of this machine.
    path = folder.parent / Path(file).parent.name / Path(file).name
    sandbox = await session.sandbox()
    try:
        with tarfile.open(path) as archive:
            for number, entry in enumerate(fast_json.loads(_member(archive, _MANIFEST).read())):
                data = _member(archive, str(number))
                await _restore(sandbox, _Kept(entry["name"], data, entry["is_directory"], entry["executable"]))
    except (OSError, tarfile.TarError, zlib.error, EOFError, ValueError, KeyError, TypeError) as error:
        raise SandboxError(
            "program", f"the kept files of the agent, {path}, cannot be read: {error}; they belong beside the records"
        ) from error


async def _export(sandbox: Sandbox, name: str, opened: ExitStack) -> _Kept:
    artifact = await export_artifact(sandbox, name, MAX_ARTIFACT_BYTES, opened)
    quoted = shlex.quote(sandbox_path(sandbox, name))
    executable = (await sandbox.exec(f"test -x {quoted}", env=INTERNAL_ENV, timeout=_UNPACK_TIMEOUT)).exit_code == 0
    return _Kept(name, artifact.data, artifact.is_directory, executable)


async def _restore(sandbox: Sandbox, kept: _Kept) -> None:
    path = sandbox_path(sandbox, kept.name)
    quoted = shlex.quote(path)
    if kept.is_directory:
        script = f"mkdir -p {quoted} && cd {quoted} && rm -rf -- ./..?* ./.[!.]* ./* && tar -xp --no-same-owner"
    else:
        script = f"rm -rf {quoted}; mkdir -p $(dirname {quoted}) && cat > {quoted}"
        script += f" && chmod +x {quoted}" if kept.executable else ""
    done = await sandbox.exec(script, env=INTERNAL_ENV, stdin=file_chunks(kept.data), timeout=_UNPACK_TIMEOUT)
    if done.exit_code != 0:
        raise OSError(f"{kept.name} could not be unpacked: {done.stderr.decode(errors='replace').strip()[:300]}")


def _pack(path: Path, kept: Iterable[_Kept]) -> int:
    """Write the archive; returns its size."""
    private_folder(path.parent)
    part = path.with_suffix(".part")
    try:
        with (
            open(part, "wb", opener=open_private) as file,
            gzip.GzipFile("", "wb", 1, file, 0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            entries = []
            for number, one in enumerate(kept):
                size = one.data.seek(0, SEEK_END)
                one.data.seek(0)
                _add(archive, str(number), one.data, size)
                entries.append({"name": one.name, "is_directory": one.is_directory, "executable": one.executable})
            manifest = fast_json.dumps(entries)
            _add(archive, _MANIFEST, BytesIO(manifest), len(manifest))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path.stat().st_size


def _add(archive: tarfile.TarFile, name: str, data: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, data)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    if found is None:
        raise KeyError(name)
    return found

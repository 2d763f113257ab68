"""Isolated verification in a fresh sandbox, with the rollout's named artifacts and the author's tests.

The policy's processes are dead and only its artifacts are present, below `artifacts/`, where nothing runs or imports
them implicitly. They are copied in chunks through a temporary file, so memory does not grow with their size. The
network is off if the backend supports it, and the policy never had access to this sandbox. Any failure other than that
of an artifact, or of what it leaves no room for, is the verifier's.
"""

import posixpath
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, TypeVar

from hermes_rl import tracing
from hermes_rl.core.errors import SandboxError, VerifierError
from hermes_rl.sandbox.protocol import INTERNAL_ENV, Command, Sandbox, file_chunks
from hermes_rl.sandbox.spec import AGENT, SandboxSpec
from hermes_rl.tools.files import sandbox_path
from hermes_rl.tools.session import ToolSession

T = TypeVar("T")

ARTIFACTS = "artifacts"
MEGABYTE = 1024 * 1024
MAX_ARTIFACT_BYTES = 64 * MEGABYTE
# Exit code of a verdict without its artifacts: EX_NOINPUT of BSD.
NO_ARTIFACT_EXIT_CODE = 66

_EXPORT_TIMEOUT = 120.0
_ATTEMPTS = 2
_MAX_IN_MEMORY = MEGABYTE
_MISSING, _NOT_A_FILE = 81, 83
# Reads names of links and removes those that are dangling or point outside this directory.
_PRUNE_LINKS = (
    'BEGIN { $root = realpath(".") } chomp; my $to = realpath($_); '
    'unlink $_ unless defined $to and ($to eq $root or index($to, "$root/") == 0)'
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the verification command. `artifact_error` says which artifact was missing or too large."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    artifact_error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0


class ArtifactError(Exception):
    """An artifact is missing, too large, or not a file or directory. The policy is responsible."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file, or a directory as a tar archive, from the rollout's sandbox, with its path below `artifacts/`."""

    relative_path: str
    data: IO[bytes]
    is_directory: bool


JudgeFunction = Callable[[Sandbox, Mapping[str, str]], Awaitable[T]]
"""Runs in the fresh sandbox after artifacts and files are in place; the mapping holds environment variables."""


async def verify(
    session: ToolSession,
    command: str,
    *,
    files: Mapping[str, bytes | str | Path],
    artifacts: Iterable[str],
    image: str | None,
    timeout: float,
    max_artifact_bytes: int = MAX_ARTIFACT_BYTES,
) -> Verdict:
    """Verify a rollout's artifacts with one command; VerifierError when the sandbox fails."""

    async def judge(sandbox: Sandbox, env: Mapping[str, str]) -> Verdict:
        result = await sandbox.exec(command, env=env, timeout=timeout)
        return Verdict(
            result.exit_code,
            result.stdout.decode(errors="replace"),
            result.stderr.decode(errors="replace"),
            timed_out=result.timed_out,
        )

    with tracing.span("verify") as span:
        try:
            verdict = await run_in_fresh_sandbox(
                session, judge, files=files, artifacts=artifacts, image=image, max_artifact_bytes=max_artifact_bytes
            )
        except ArtifactError as error:
            verdict = Verdict(NO_ARTIFACT_EXIT_CODE, "", str(error), artifact_error=str(error))
        if span.on:
            span.set_attributes(exit_code=verdict.exit_code)
        return verdict


async def run_in_fresh_sandbox(
    session: ToolSession,
    judge: JudgeFunction[T],
    *,
    files: Mapping[str, bytes | str | Path],
    artifacts: Iterable[str],
    image: str | None,
    max_artifact_bytes: int = MAX_ARTIFACT_BYTES,
) -> T:
    """Run `judge` on a rollout's artifacts in a fresh sandbox, with one retry if the sandbox fails.

    ArtifactError when an artifact cannot be copied; VerifierError when the sandbox fails again.
    """
    await session.end_policy()
    # Also kill what the verifier itself started in the rollout's sandbox.
    await (await session.sandbox()).end_processes()
    with ExitStack() as opened:
        exported = [
            await export_artifact(await session.sandbox(), name, max_artifact_bytes, opened)
            for name in ([artifacts] if isinstance(artifacts, str) else artifacts)
        ]
        spec = _spec(session.spec or SandboxSpec(), image, network_off=session.pool.capabilities.network_off)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with session.untouched_sandbox(spec) as sandbox:
                    artifacts_dir = f"{sandbox.workspace}/{ARTIFACTS}"
                    for artifact in exported:
                        await _import_artifact(sandbox, artifact, f"{artifacts_dir}/{artifact.relative_path}")
                    try:
                        for name, content in files.items():
                            await _write_test_file(sandbox, sandbox_path(sandbox, name), content)
                    except OSError as error:
                        if not exported:
                            raise
                        # The artifacts took the space, the inodes or the place of the tests.
                        raise ArtifactError(f"the tests could not be placed beside the artifacts: {error}") from error
                    return await judge(sandbox, {"ARTIFACTS": artifacts_dir})
            except SandboxError as error:
                if attempt == _ATTEMPTS:
                    raise VerifierError(
                        f"sandbox_{error.cause}", f"the verification sandbox failed: {error}"
                    ) from error
    raise AssertionError("the last attempt returns or raises")


def _spec(spec: SandboxSpec, image: str | None, *, network_off: bool) -> SandboxSpec:
    """The rollout's spec without network."""
    return replace(spec, image=image or spec.image, network=False if network_off else None, user=AGENT)


async def export_artifact(sandbox: Sandbox, name: str, limit: int, opened: ExitStack) -> Artifact:
    """Copy one artifact out of the rollout's sandbox. It is never unpacked on the host."""
    path = posixpath.normpath(sandbox_path(sandbox, name))
    inside = posixpath.relpath(path, sandbox.workspace)
    relative_path = path.lstrip("/") if inside.startswith("..") else inside
    quoted = shlex.quote(path)
    kind = await sandbox.exec(
        f"if [ -d {quoted} ]; then echo d; elif [ -f {quoted} ]; then echo f; elif [ -e {quoted} ]; "
        f"then exit {_NOT_A_FILE}; else exit {_MISSING}; fi",
        timeout=_EXPORT_TIMEOUT,
    )
    if kind.exit_code == _MISSING:
        raise ArtifactError(f"artifact {name} is missing")
    if kind.exit_code != 0:
        raise ArtifactError(f"artifact {name} is neither a file nor a directory that can be read")
    is_directory = kind.stdout == b"d\n"
    data: IO[bytes] = opened.enter_context(SpooledTemporaryFile(max_size=_MAX_IN_MEMORY))  # noqa: SIM115 - it is one
    # For a directory, archive its content: no name chosen by the policy is needed.
    export = f"set -o pipefail; cd -- {quoted} && tar -cf - ." if is_directory else f"cat < {quoted}"
    # Do not read beyond the limit: a sparse file of a terabyte takes no space.
    command = Command(
        f"{export} | head -c {limit + 1}", _EXPORT_TIMEOUT, env=INTERNAL_ENV, max_output=limit, sink=data.write
    )
    result = await sandbox.run(command)
    if result.truncated:
        raise ArtifactError(f"artifact {name} is larger than {limit / MEGABYTE:g} MB")
    if result.exit_code != 0:
        message = result.stderr.decode(errors="replace").strip()[:500]
        raise ArtifactError(f"artifact {name} could not be read: {message or f'exit code {result.exit_code}'}")
    return Artifact(relative_path, data, is_directory)


async def _import_artifact(sandbox: Sandbox, artifact: Artifact, path: str) -> None:
    artifact.data.seek(0)
    if not artifact.is_directory:
        try:
            await sandbox.write(path, file_chunks(artifact.data))
        except OSError as error:
            # The policy's file may be sparse and take space only when copied.
            raise ArtifactError(f"an artifact could not be placed: {error}") from error
        return
    quoted = shlex.quote(path)
    # tar rejects names that lead out of the directory, but not links: a link to where the expected answer will be
    # written would make that answer an artifact.
    result = await sandbox.exec(
        f"mkdir -p {quoted} && cd {quoted} && tar -x --no-same-owner --no-same-permissions; "
        f"find . -type l -print0 | exec perl -MCwd=realpath -0 -ne {shlex.quote(_PRUNE_LINKS)}",
        env=INTERNAL_ENV,
        stdin=file_chunks(artifact.data),
        timeout=_EXPORT_TIMEOUT,
    )
    if result.timed_out:
        raise ArtifactError(f"unpacking an artifact took over {_EXPORT_TIMEOUT:.0f} s")


async def _write_test_file(sandbox: Sandbox, path: str, content: bytes | str | Path) -> None:
    """Write a test file, after removing links and files that an artifact put in its way."""
    parts = posixpath.relpath(path, sandbox.workspace).split("/")
    if parts[0] == ARTIFACTS:
        ancestors = [posixpath.join(sandbox.workspace, *parts[:count]) for count in range(1, len(parts) + 1)]
        clearing = "; ".join(
            f"[ ! -L {shlex.quote(ancestor)} ] || rm -f -- {shlex.quote(ancestor)}" for ancestor in ancestors
        )
        await sandbox.exec(f"{clearing}; rm -rf -- {shlex.quote(path)}", timeout=_EXPORT_TIMEOUT)
    if isinstance(content, Path):
        await sandbox.upload(content, path)
        return
    await sandbox.write(path, bytes(content, "utf-8") if isinstance(content, str) else content)

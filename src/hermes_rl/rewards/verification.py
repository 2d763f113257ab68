"""Isolated verification: a fresh sandbox, the named artifacts of the rollout, and tests that arrive only now.

Always true: nothing of the policy's is alive, no file of its sandbox is there but the artifacts, which lie below
`artifacts/` where nothing runs or imports them by itself, the network is off where it can be, and the verdict comes
over the channel of a warden that the policy never met. Whatever fails here besides the artifacts is the verifier's.
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
from hermes_rl.errors import SandboxError, VerifierError
from hermes_rl.sandbox.protocol import OUR_ENV, Command, Sandbox
from hermes_rl.sandbox.spec import AGENT, SandboxSpec
from hermes_rl.tools.files import in_sandbox
from hermes_rl.tools.session import ToolSession

T = TypeVar("T")

ARTIFACTS = "artifacts"
MAX_ARTIFACT_BYTES = 64 * 1024 * 1024
# The exit code of a verdict whose artifacts could not be had: BSD's "cannot open input".
NO_ARTIFACT_EXIT_CODE = 66

_EXPORT_TIMEOUT = 120.0
_ATTEMPTS = 2
_IN_MEMORY = 1024 * 1024
_MISSING, _NOT_A_FILE = 81, 83
# Reads the names of links; one that leads out of this directory, or to what is not there yet, is removed.
_PRUNE = (
    'BEGIN { $root = realpath(".") } chomp; my $to = realpath($_); '
    'unlink $_ unless defined $to and ($to eq $root or index($to, "$root/") == 0)'
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verification's command left. `artifact_error` says which artifact was missing or too large."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    artifact_error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the command ended with 0."""
        return self.exit_code == 0


class ArtifactError(Exception):
    """An artifact is missing, no file or directory, or too large to be had or placed: the policy's own doing."""


@dataclass(frozen=True, slots=True)
class _Artifact:
    """A file, or a directory as a tar archive, out of the rollout's sandbox; its place below `artifacts/`."""

    place: str
    data: IO[bytes]
    is_directory: bool


Judging = Callable[[Sandbox, Mapping[str, str]], Awaitable[T]]
"""What is done in the verification's sandbox once artifacts and files are there; the mapping is its environment."""


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
    """Judge a rollout's artifacts by one command; VerifierError when that cannot be done."""

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
            verdict = await judged_apart(
                session, judge, files=files, artifacts=artifacts, image=image, max_artifact_bytes=max_artifact_bytes
            )
        except ArtifactError as error:
            verdict = Verdict(NO_ARTIFACT_EXIT_CODE, "", str(error), artifact_error=str(error))
        if span.on:
            span.note(exit_code=verdict.exit_code)
        return verdict


async def judged_apart(
    session: ToolSession,
    judge: Judging[T],
    *,
    files: Mapping[str, bytes | str | Path],
    artifacts: Iterable[str],
    image: str | None,
    max_artifact_bytes: int = MAX_ARTIFACT_BYTES,
) -> T:
    """What `judge` says of a rollout's artifacts in a sandbox of their own, tried twice if that sandbox fails.

    ArtifactError when one cannot be had; VerifierError when the sandbox fails again.
    """
    await session.end_policy()
    # Also what its code has left running when a verifier ran that in its sandbox.
    await (await session.sandbox()).end_processes()
    with ExitStack() as opened:
        exported = [
            await _export(await session.sandbox(), name, max_artifact_bytes, opened)
            for name in ([artifacts] if isinstance(artifacts, str) else artifacts)
        ]
        spec = _spec(session.spec or SandboxSpec(), image, network_off=session.pool.capabilities.network_off)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with session.pool.sandbox(spec, verifying=True) as sandbox:
                    room = f"{sandbox.workspace}/{ARTIFACTS}"
                    for artifact in exported:
                        await _import(sandbox, artifact, f"{room}/{artifact.place}")
                    for name, content in files.items():
                        await _place(sandbox, in_sandbox(sandbox, name), content)
                    return await judge(sandbox, {"ARTIFACTS": room})
            except SandboxError as error:
                if attempt == _ATTEMPTS:
                    raise VerifierError(f"sandbox_{error.cause}", f"the verification's sandbox: {error}") from error
    raise AssertionError("the last attempt returns or raises")


def _spec(spec: SandboxSpec, image: str | None, *, network_off: bool) -> SandboxSpec:
    """The rollout's own spec, as it was before the policy came, without a network."""
    return replace(spec, image=image or spec.image, network=False if network_off else None, user=AGENT)


async def _export(sandbox: Sandbox, name: str, limit: int, opened: ExitStack) -> _Artifact:
    """Copy one artifact out of the rollout's sandbox. It is never unpacked on this machine."""
    path = posixpath.normpath(in_sandbox(sandbox, name))
    inside = posixpath.relpath(path, sandbox.workspace)
    place = path.lstrip("/") if inside.startswith("..") else inside
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
    data: IO[bytes] = opened.enter_context(SpooledTemporaryFile(max_size=_IN_MEMORY))  # noqa: SIM115 - it is one
    # Of a directory its content, which needs no name of the policy's choosing.
    whole = f"set -o pipefail; cd -- {quoted} && tar -cf - ." if is_directory else f"cat < {quoted}"
    # The rest of what is too large is not even read: a file of a terabyte takes no room when it is one hole.
    command = Command(f"{whole} | head -c {limit + 1}", _EXPORT_TIMEOUT, env=OUR_ENV, max_output=limit, sink=data.write)
    result = await sandbox.run(command)
    if result.truncated:
        raise ArtifactError(f"artifact {name} is larger than {limit} bytes")
    if result.exit_code != 0:
        said = result.stderr.decode(errors="replace").strip()[:500]
        raise ArtifactError(f"artifact {name} could not be read: {said or f'exit code {result.exit_code}'}")
    return _Artifact(place, data, is_directory)


async def _import(sandbox: Sandbox, artifact: _Artifact, path: str) -> None:
    artifact.data.seek(0)
    if not artifact.is_directory:
        try:
            await sandbox.write(path, artifact.data.read())
        except OSError as error:
            # The policy's file may have been one hole, which takes no room until it is copied.
            raise ArtifactError(f"an artifact could not be placed: {error}") from error
        return
    quoted = shlex.quote(path)
    # Names that lead out of the directory are refused by tar. Links are not: one to where the expected answer will be
    # would make that the policy's own.
    result = await sandbox.exec(
        f"mkdir -p {quoted} && cd {quoted} && tar -x --no-same-owner --no-same-permissions; "
        f"find . -type l -print0 | exec perl -MCwd=realpath -0 -ne {shlex.quote(_PRUNE)}",
        env=OUR_ENV,
        stdin=artifact.data.read(),
        timeout=_EXPORT_TIMEOUT,
    )
    if result.timed_out:
        raise SandboxError("hang", f"unpacking an artifact took over {_EXPORT_TIMEOUT:.0f} s")


async def _place(sandbox: Sandbox, path: str, content: bytes | str | Path) -> None:
    """Write one of the tests' files. What an artifact put in its way, a link above all, is removed first."""
    parts = posixpath.relpath(path, sandbox.workspace).split("/")
    if parts[0] == ARTIFACTS:
        steps = [posixpath.join(sandbox.workspace, *parts[:count]) for count in range(1, len(parts) + 1)]
        clearing = "; ".join(f"[ ! -L {shlex.quote(step)} ] || rm -f -- {shlex.quote(step)}" for step in steps)
        await sandbox.exec(f"{clearing}; rm -rf -- {shlex.quote(path)}", timeout=_EXPORT_TIMEOUT)
    if isinstance(content, Path):
        await sandbox.upload(content, path)
        return
    await sandbox.write(path, bytes(content, "utf-8") if isinstance(content, str) else content)

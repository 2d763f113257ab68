"""The Sandbox protocol: one rollout's machine, whatever runs it.

A backend implements `run`, `end_processes`, `alive` and `close`; files travel through commands, so a path is always
resolved inside the sandbox, where a symbolic link made by the policy leads nowhere else.
"""

import posixpath
import shlex
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, runtime_checkable

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec

TIMEOUT_EXIT_CODE = 124
WORKSPACE = "/workspace"
DEFAULT_MAX_OUTPUT = 10 * 1024 * 1024
ANY_SIZE = 2**62
FILE_TIMEOUT = 120.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# For commands of our own: a spec's PATH may lead to where the policy can put a program.
OUR_ENV = {"PATH": PATH}

_PIECE = 256 * 1024
_IS_DIRECTORY, _IS_MISSING, _IS_SPECIAL, _IS_LARGE = 82, 81, 83, 84


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command as a backend gets it: everything that `Sandbox.exec` was told.

    With a `sink` the standard output goes there as it comes and is not collected.
    """

    text: str
    timeout: float
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | AsyncIterable[bytes] | None = None
    merge_stderr: bool = False
    max_output: int = DEFAULT_MAX_OUTPUT
    user: str | None = None
    sink: Callable[[bytes], object] | None = None


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command left. A command that ran out of time has exit code 124 and the output so far."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False


class Sandbox(ABC):
    """One rollout's machine. Use as `async with`; leaving closes it, and closing twice is harmless."""

    workspace: str = WORKSPACE
    scratch: str = "/tmp"  # noqa: S108 - inside the sandbox; where tools keep state that is not the policy's work

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | AsyncIterable[bytes] | None = None,
        timeout: float,
        merge_stderr: bool = False,
        max_output: int = DEFAULT_MAX_OUTPUT,
        user: str | None = None,
    ) -> ExecResult:
        """Run a shell command. On timeout its whole process tree is killed, children in other sessions included.

        A process left in the background by a command that ended stays until the sandbox closes. `max_output`
        bounds each stream; what comes after is read and dropped. `user` is the spec's own unless named: `agent`, or
        `root` where the backend has it. Raises SandboxError when the sandbox is gone.
        """
        return await self.run(Command(command, timeout, cwd, env or {}, stdin, merge_stderr, max_output, user))

    @abstractmethod
    async def run(self, command: Command) -> ExecResult:
        """What `exec` promises, for the backend to keep."""

    @abstractmethod
    async def end_processes(self) -> None:
        """Kill everything that runs inside; the files stay. Called before a rollout is scored."""

    @abstractmethod
    async def alive(self) -> bool:
        """Whether commands can still be run."""

    @abstractmethod
    async def close(self) -> None:
        """Kill everything and remove the workspace. Never raises for a sandbox that is already gone."""

    async def read(self, path: str, *, max_bytes: int = DEFAULT_MAX_OUTPUT) -> bytes:
        """The bytes of a file. FileNotFoundError, IsADirectoryError or PermissionError as for a local one."""
        script = _read_script(path, max_bytes)
        result = await self.run(Command(script, FILE_TIMEOUT, env=OUR_ENV, max_output=max_bytes))
        _check_read(path, result, max_bytes)
        return result.stdout

    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> None:
        """Create or replace a file, with its parent directories. OSError when the place is not writable."""
        quoted = shlex.quote(path)
        parent = shlex.quote(posixpath.dirname(path) or ".")
        result = await self.exec(
            f"if [ -e {quoted} ] && [ ! -f {quoted} ]; then exit {_IS_SPECIAL}; fi; "
            f"mkdir -p -- {parent} && exec cat > {quoted}",
            env=OUR_ENV,
            stdin=data,
            timeout=FILE_TIMEOUT,
        )
        if result.timed_out:
            raise SandboxError("hang", f"writing {path} in the sandbox took over {FILE_TIMEOUT:.0f} s")
        if result.exit_code == _IS_SPECIAL:
            raise OSError(f"{path} is not a regular file")
        if result.exit_code != 0:
            raise OSError(_reason(path, result))

    async def upload(self, local: Path, remote: str) -> int:
        """Copy a local file into the sandbox, piece by piece; its size."""
        with local.open("rb") as file:
            await self.write(remote, _pieces(file))
            return file.tell()

    async def download(self, remote: str, local: Path, *, max_bytes: int = ANY_SIZE) -> int:
        """Copy a file of the sandbox to a local one, piece by piece; its size. What is half done is removed."""
        local.parent.mkdir(parents=True, exist_ok=True)
        try:
            with local.open("wb") as file:
                script = _read_script(remote, max_bytes)
                reading = Command(script, FILE_TIMEOUT, env=OUR_ENV, max_output=max_bytes, sink=file.write)
                _check_read(remote, await self.run(reading), max_bytes)
                return file.tell()
        except BaseException:
            local.unlink(missing_ok=True)  # noqa: ASYNC240 - one local file
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@runtime_checkable
class Backend(Protocol):
    """A way to make sandboxes."""

    name: str
    capabilities: Capabilities

    async def probe(self) -> None:
        """Really start one and run a command; SandboxError with the next step when it cannot work here."""
        ...

    async def prepare(self, spec: SandboxSpec, say: Callable[[str], object]) -> None:
        """Pull or unpack a spec's image and bake its files and setup, telling `say`; harmless when all is there."""
        ...

    async def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        """A new sandbox; ConfigError when the spec asks for what cannot be held, SandboxError when none can be had."""
        ...

    async def reap(self, resources: Mapping[str, Any]) -> None:
        """Remove what a dead owner left, as its ledger tells: all of it, and harmless when it is gone already."""
        ...

    async def close(self) -> None:
        """Close every sandbox that is still open. The backend can start new ones afterwards."""
        ...


def _read_script(path: str, max_bytes: int) -> str:
    quoted = shlex.quote(path)
    # Anything but a regular file is refused: reading a named pipe that the policy left would hang. A file of a terabyte
    # takes no room when it is one hole, and those in /proc do not tell their size.
    large = f'[ "$(stat -Lc %s -- {quoted})" -gt {max_bytes} ]'
    read = "cat" if max_bytes == ANY_SIZE else f"head -c {max_bytes + 1}"
    return (
        f"if [ -d {quoted} ]; then exit {_IS_DIRECTORY}; elif [ ! -e {quoted} ]; then exit {_IS_MISSING}; "
        f"elif [ ! -f {quoted} ]; then exit {_IS_SPECIAL}; elif {large}; then exit {_IS_LARGE}; fi; "
        f"exec {read} < {quoted}"
    )


def _check_read(path: str, result: ExecResult, max_bytes: int) -> None:
    if result.timed_out:
        raise SandboxError("hang", f"reading {path} in the sandbox took over {FILE_TIMEOUT:.0f} s")
    if result.exit_code == _IS_MISSING:
        raise FileNotFoundError(path)
    if result.exit_code == _IS_DIRECTORY:
        raise IsADirectoryError(path)
    if result.exit_code == _IS_SPECIAL:
        raise OSError(f"{path} is not a regular file")
    if result.exit_code == _IS_LARGE or result.truncated:
        raise OSError(f"{path} is larger than {max_bytes} bytes")
    if result.exit_code != 0:
        raise PermissionError(_reason(path, result))


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _reason(path: str, result: ExecResult) -> str:
    return f"{path}: {result.stderr.decode(errors='replace').strip() or f'exit code {result.exit_code}'}"

"""The Sandbox protocol: one rollout's machine, on any backend.

A backend implements `run`, `end_processes`, `alive` and `close`. Files are transferred by commands, so paths are always
resolved inside the sandbox and a symbolic link created by the policy cannot lead out of it.
"""

import posixpath
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import IO, Any, Protocol, Self, runtime_checkable

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec

TIMEOUT_EXIT_CODE = 124
WORKSPACE = "/workspace"
DEFAULT_MAX_OUTPUT = 10 * 1024 * 1024
UNLIMITED = 2**62
FILE_TIMEOUT = 120.0
PROBE_TIMEOUT = 20.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# For our own commands: a spec's PATH may include directories that the policy can write to.
INTERNAL_ENV = {"PATH": PATH}

_CHUNK = 256 * 1024
_IS_DIRECTORY, _IS_MISSING, _IS_SPECIAL, _IS_LARGE = 82, 81, 83, 84


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command as passed to a backend: all arguments of `Sandbox.exec`.

    With a `sink`, standard output is streamed to it instead of being collected.
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
    """The result of a command. A command that timed out has exit code 124 and its output so far."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False


class Sandbox(ABC):
    """One rollout's machine. Use with `async with`, which closes it. Closing twice is harmless."""

    workspace: str = WORKSPACE
    scratch: str = "/tmp"  # noqa: S108 - inside the sandbox; for state of tools that is not the policy's work
    commands_running = 0
    last_used = 0.0
    """When it was acquired or its last command ended, on the monotonic clock."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "run" in vars(cls):
            setattr(cls, "run", _counted(cls.run))  # noqa: B010 - a type checker takes an assignment for a mistake

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
        """Run a shell command. On timeout its whole process tree is killed, including children in other sessions.

        A background process outlives its command and runs until the sandbox closes. Each stream is truncated at
        `max_output` bytes. `user` is `agent`, or `root` where the backend supports it; default is the spec's user.
        Raises SandboxError if the sandbox is gone.
        """
        return await self.run(Command(command, timeout, cwd, env or {}, stdin, merge_stderr, max_output, user))

    @abstractmethod
    async def run(self, command: Command) -> ExecResult:
        """Implements `exec`."""

    @abstractmethod
    async def end_processes(self) -> None:
        """Kill all processes inside; files stay. Called before a rollout is scored."""

    @abstractmethod
    async def alive(self) -> bool:
        """Whether commands can still run."""

    async def broken_from_outside(self, cause: str) -> bool:
        """Whether the host can see that no process inside `died` it or made it `hang`; False if it cannot tell."""
        return False

    @abstractmethod
    async def close(self) -> None:
        """Kill all processes and remove the workspace. Never raises for a sandbox that is already gone."""

    async def read(self, path: str, *, max_bytes: int = DEFAULT_MAX_OUTPUT) -> bytes:
        """Read a file. OSError as for a local read; TimeoutError, since the policy can stop what reads it."""
        script = _read_script(path, max_bytes)
        result = await self.run(Command(script, FILE_TIMEOUT, env=INTERNAL_ENV, max_output=max_bytes))
        _check_read(path, result, max_bytes)
        return result.stdout

    async def write(self, path: str, data: bytes | AsyncIterable[bytes]) -> None:
        """Create or replace a file and create its parent directories. OSError if the path is not writable."""
        quoted = shlex.quote(path)
        parent = shlex.quote(posixpath.dirname(path) or ".")
        result = await self.exec(
            f"if [ -e {quoted} ] && [ ! -f {quoted} ]; then exit {_IS_SPECIAL}; fi; "
            f"mkdir -p -- {parent} && exec cat > {quoted}",
            env=INTERNAL_ENV,
            stdin=data,
            timeout=FILE_TIMEOUT,
        )
        if result.timed_out:
            raise TimeoutError(f"writing {path} in the sandbox took over {FILE_TIMEOUT:.0f} s")
        if result.exit_code == _IS_SPECIAL:
            raise OSError(f"{path} is not a regular file")
        if result.exit_code != 0:
            raise OSError(_failure_message(path, result))

    async def upload(self, local: Path, remote: str) -> int:
        """Stream a local file into the sandbox. Returns its size."""
        with local.open("rb") as file:
            await self.write(remote, file_chunks(file))
            return file.tell()

    async def download(self, remote: str, local: Path, *, max_bytes: int = UNLIMITED) -> int:
        """Stream a file of the sandbox to a local file. Returns its size. A partial file is removed on failure."""
        local.parent.mkdir(parents=True, exist_ok=True)
        try:
            with local.open("wb") as file:
                script = _read_script(remote, max_bytes)
                command = Command(script, FILE_TIMEOUT, env=INTERNAL_ENV, max_output=max_bytes, sink=file.write)
                _check_read(remote, await self.run(command), max_bytes)
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
    """Starts sandboxes of one kind."""

    name: str
    capabilities: Capabilities

    async def probe(self) -> None:
        """Start a sandbox and run a command. SandboxError with the next step if the backend does not work here."""
        ...

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        """Pull or unpack the image and bake files and setup, with progress lines to `report`. Idempotent."""
        ...

    async def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Start a sandbox. ConfigError if the spec asks for something unsupported, SandboxError if the start fails."""
        ...

    async def reap(self, resources: Mapping[str, Any]) -> None:
        """Remove the resources that a dead owner's ledger lists. Harmless if they are already gone."""
        ...

    async def close(self) -> None:
        """Close all open sandboxes. The backend can start new ones afterwards."""
        ...


def _counted(run: Callable[[Any, Command], Awaitable[ExecResult]]) -> Callable[[Any, Command], Awaitable[ExecResult]]:
    """Keep `commands_running` and `last_used`, so that a sandbox is never closed as idle under a command."""

    @wraps(run)
    async def counted(self: Sandbox, command: Command) -> ExecResult:
        self.commands_running += 1
        try:
            return await run(self, command)
        finally:
            self.commands_running -= 1
            self.last_used = time.monotonic()

    return counted


async def probe_by_command(backend: Backend, command: str, expected: bytes) -> None:
    """Start a sandbox and run a command in it; SandboxError unless it prints what is expected."""
    async with await backend.start() as sandbox:
        result = await sandbox.exec(command, timeout=PROBE_TIMEOUT)
    if result.exit_code != 0 or result.stdout != expected:
        stderr = result.stderr.decode(errors="replace").strip()
        raise SandboxError("start", f"a {backend.name} sandbox started but cannot run commands: {stderr}")


def _read_script(path: str, max_bytes: int) -> str:
    quoted = shlex.quote(path)
    # Anything but a regular file is refused: reading a named pipe that the policy left would hang. Both checks of the
    # size are needed: a sparse file of a terabyte takes no space, and files in /proc report size 0.
    large = f'[ "$(stat -Lc %s -- {quoted})" -gt {max_bytes} ]'
    read = "cat" if max_bytes == UNLIMITED else f"head -c {max_bytes + 1}"
    return (
        f"if [ -d {quoted} ]; then exit {_IS_DIRECTORY}; elif [ ! -e {quoted} ]; then exit {_IS_MISSING}; "
        f"elif [ ! -f {quoted} ]; then exit {_IS_SPECIAL}; elif {large}; then exit {_IS_LARGE}; fi; "
        f"exec {read} < {quoted}"
    )


def _check_read(path: str, result: ExecResult, max_bytes: int) -> None:
    if result.timed_out:
        raise TimeoutError(f"reading {path} in the sandbox took over {FILE_TIMEOUT:.0f} s")
    if result.exit_code == _IS_MISSING:
        raise FileNotFoundError(path)
    if result.exit_code == _IS_DIRECTORY:
        raise IsADirectoryError(path)
    if result.exit_code == _IS_SPECIAL:
        raise OSError(f"{path} is not a regular file")
    if result.exit_code == _IS_LARGE or result.truncated:
        raise OSError(f"{path} is larger than {max_bytes} bytes")
    if result.exit_code != 0:
        raise PermissionError(_failure_message(path, result))


async def file_chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    """The rest of a file in chunks, as input of a command."""
    while chunk := file.read(_CHUNK):
        yield chunk


def _failure_message(path: str, result: ExecResult) -> str:
    return f"{path}: {result.stderr.decode(errors='replace').strip() or f'exit code {result.exit_code}'}"

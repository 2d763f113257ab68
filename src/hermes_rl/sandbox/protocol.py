"""The Sandbox protocol: one rollout's machine, whatever runs it.

A backend implements `run`, `end_processes`, `alive` and `close`; files travel through commands, so a path is always
resolved inside the sandbox, where a symbolic link made by the policy leads nowhere else.
"""

import posixpath
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

from hermes_rl.errors import SandboxError

TIMEOUT_EXIT_CODE = 124
WORKSPACE = "/workspace"
DEFAULT_MAX_OUTPUT = 10 * 1024 * 1024
FILE_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command as a backend gets it: everything that `Sandbox.exec` was told."""

    text: str
    timeout: float
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    merge_stderr: bool = False
    max_output: int = DEFAULT_MAX_OUTPUT


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command left. A command that ran out of time has exit code 124 and the output so far."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend really holds; anything false here is said to the user, never silently ignored."""

    isolates_files: bool
    isolates_processes: bool
    network_off: bool


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
        stdin: bytes | None = None,
        timeout: float,
        merge_stderr: bool = False,
        max_output: int = DEFAULT_MAX_OUTPUT,
    ) -> ExecResult:
        """Run a shell command. On timeout its whole process tree is killed, children in other sessions included.

        A process left in the background by a command that ended stays until the sandbox closes. `max_output`
        bounds each stream; what comes after is read and dropped. Raises SandboxError when the sandbox is gone.
        """
        return await self.run(Command(command, timeout, cwd, env or {}, stdin, merge_stderr, max_output))

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
        quoted = shlex.quote(path)
        # Anything but a regular file is refused: reading a named pipe that the policy left would hang.
        result = await self.exec(
            f"if [ -d {quoted} ]; then exit 82; elif [ ! -e {quoted} ]; then exit 81; elif [ ! -f {quoted} ]; "
            f"then exit 83; fi; exec cat < {quoted}",
            timeout=FILE_TIMEOUT,
            max_output=max_bytes,
        )
        if result.timed_out:
            raise SandboxError("hang", f"reading {path} in the sandbox took over {FILE_TIMEOUT:.0f} s")
        if result.exit_code == 81:
            raise FileNotFoundError(path)
        if result.exit_code == 82:
            raise IsADirectoryError(path)
        if result.exit_code == 83:
            raise OSError(f"{path} is not a regular file")
        if result.exit_code != 0:
            raise PermissionError(_reason(path, result))
        if result.truncated:
            raise OSError(f"{path} is larger than {max_bytes} bytes")
        return result.stdout

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file, with its parent directories. OSError when the place is not writable."""
        quoted = shlex.quote(path)
        parent = shlex.quote(posixpath.dirname(path) or ".")
        result = await self.exec(
            f"if [ -e {quoted} ] && [ ! -f {quoted} ]; then exit 83; fi; mkdir -p -- {parent} && exec cat > {quoted}",
            stdin=data,
            timeout=FILE_TIMEOUT,
        )
        if result.timed_out:
            raise SandboxError("hang", f"writing {path} in the sandbox took over {FILE_TIMEOUT:.0f} s")
        if result.exit_code == 83:
            raise OSError(f"{path} is not a regular file")
        if result.exit_code != 0:
            raise OSError(_reason(path, result))

    async def upload(self, local: Path, remote: str) -> int:
        data = local.read_bytes()  # noqa: ASYNC240 - a small local file
        await self.write(remote, data)
        return len(data)

    async def download(self, remote: str, local: Path) -> int:
        data = await self.read(remote)
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(data)  # noqa: ASYNC240 - a small local file
        return len(data)

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

    async def start(self) -> Sandbox:
        """A new sandbox with an empty workspace; SandboxError when it cannot be had."""
        ...

    async def close(self) -> None:
        """Close every sandbox that is still open. The backend can start new ones afterwards."""
        ...


def _reason(path: str, result: ExecResult) -> str:
    return f"{path}: {result.stderr.decode(errors='replace').strip() or f'exit code {result.exit_code}'}"

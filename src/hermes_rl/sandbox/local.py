"""Backend `local`: NOT a sandbox. Commands run on this machine, as this user, and see its files and its network.

For trusted code and for tests. What it keeps: a scrubbed environment, a workspace of its own as HOME, and the killing
of process trees, as far as processes do not hide the marker they were started with.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
from pathlib import Path

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import commands
from hermes_rl.sandbox.process_tree import descendants, everyone, marker_of, send_signal
from hermes_rl.sandbox.protocol import Capabilities, Command, ExecResult, Sandbox
from hermes_rl.sandbox.workspaces import Workspaces

_KILL_ROUNDS = 20
_PROBE_TIMEOUT = 20.0


class LocalBackend:
    """Runs commands on the host itself. Never chosen unless it is named."""

    name = "local"
    capabilities = Capabilities(isolates_files=False, isolates_processes=False, network_off=False)

    def __init__(self) -> None:
        self._workspaces = Workspaces()
        self._open: set[LocalSandbox] = set()
        self._gate = asyncio.Lock()

    async def probe(self) -> None:
        async with await self.start() as sandbox:
            result = await sandbox.exec("true", timeout=_PROBE_TIMEOUT)
        if result.exit_code != 0:
            raise SandboxError("start", f"bash cannot run commands here: {result.stderr.decode(errors='replace')}")

    async def start(self) -> "LocalSandbox":
        bash = shutil.which("bash", path=commands.PATH)
        if bash is None:
            raise SandboxError("start", "the local backend needs bash: install it (apt-get install bash)")
        directory, scratch = self._workspaces.create(None), self._workspaces.create(None)
        sandbox = LocalSandbox(bash, directory, scratch, self._workspaces, self._open, self._gate)
        self._open.add(sandbox)
        return sandbox

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._open)))


class LocalSandbox(Sandbox):
    """A directory on the host and the processes started for it."""

    def __init__(
        self,
        bash: str,
        directory: Path,
        scratch: Path,
        workspaces: Workspaces,
        siblings: set["LocalSandbox"],
        gate: asyncio.Lock,
    ) -> None:
        self.workspace, self.scratch = str(directory), str(scratch)
        self._bash = bash
        self._directories = (directory, scratch)
        self._workspaces = workspaces
        self._siblings = siblings
        self._gate = gate
        self._leftovers = commands.Leftovers()
        self._id = secrets.token_hex(8)
        self._running: set[int] = set()
        self._closing: asyncio.Task[None] | None = None

    async def run(self, command: Command) -> ExecResult:
        self._require_open()
        marker = f"{self._id}.{secrets.token_hex(8)}"

        async def kill(pid: int) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            await self._kill({pid}, marker)

        result = await commands.run_in_shell(
            [self._bash],
            command,
            home=self.workspace,
            marker=marker,
            kill=kill,
            leftovers=self._leftovers,
            running=self._running,
            gate=self._gate,
        )
        self._require_open()
        return result

    async def end_processes(self) -> None:
        self._require_open()
        if not await self._kill(self._running, self._id):
            raise SandboxError("hang", "processes of this workspace would not die")

    async def alive(self) -> bool:
        return self._closing is None

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._kill(self._running, self._id)
        self._leftovers.close()
        for directory in self._directories:
            await self._workspaces.remove(directory)
        self._siblings.discard(self)

    async def _kill(self, roots: set[int], marker: str) -> bool:
        """Kill the roots, what descends from them and whatever shows a marker that begins so; whether all are gone."""
        for round_ in range(_KILL_ROUNDS):
            tree = [pid for root in tuple(roots) for pid in descendants(root)]
            tree += [pid for pid in everyone() if (marker_of(pid) or "").startswith(marker)]
            if not tree:
                return True
            send_signal(tree)
            await asyncio.sleep(0.001 * (round_ + 1))
        return False

    def _require_open(self) -> None:
        if self._closing is not None:
            raise SandboxError("closed", "the sandbox was closed")

"""Backend `bubblewrap`: Linux namespaces around one workspace, with no daemon and no image.

Always true: the sandbox has no network, no capability, no way to make a namespace, none of our environment, and only
/usr (read-only) and its own workspace of the host's files. All of it dies with its first process, which dies with us.
"""

import asyncio
import contextlib
import os
import secrets
import select
import signal
from collections.abc import Mapping
from pathlib import Path

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import commands
from hermes_rl.sandbox.child import Child
from hermes_rl.sandbox.namespaces import READY, Tools, enter_argv, fresh_uid, start_argv, why_not, write_etc
from hermes_rl.sandbox.process_tree import children, descendants, halt, marker_of, send_signal
from hermes_rl.sandbox.protocol import WORKSPACE, Capabilities, Command, ExecResult, Sandbox
from hermes_rl.sandbox.workspaces import Workspaces

START_TIMEOUT = 20.0

_END_TIMEOUT = 5.0
_KILL_ROUNDS = 60
_PROBE_TIMEOUT = 20.0
# A worker that our process forks must not hold these pipes open when we die.
_controls: set[int] = set()


def _close_controls() -> None:
    for control in _controls:
        os.close(control)
    _controls.clear()


os.register_at_fork(after_in_child=_close_controls)


class BubblewrapBackend:
    """Sandboxes for Linux, as root (each under a uid of its own) or as an ordinary user."""

    name = "bubblewrap"
    capabilities = Capabilities(isolates_files=True, isolates_processes=True, network_off=True)

    def __init__(self, *, start_timeout: float = START_TIMEOUT) -> None:
        self._start_timeout = start_timeout
        self._workspaces = Workspaces()
        self._open: set[BubblewrapSandbox] = set()
        self._gate = asyncio.Lock()
        self._tools: Tools | None = None

    async def probe(self) -> None:
        async with await self.start() as sandbox:
            result = await sandbox.exec("id -un", timeout=_PROBE_TIMEOUT)
        if result.stdout != b"agent\n":
            raise SandboxError("start", f"a bubblewrap sandbox started but cannot run commands: {_text(result.stderr)}")

    async def start(self) -> "BubblewrapSandbox":
        self._tools = self._tools or Tools.find()
        owner = fresh_uid({sandbox.owner for sandbox in self._open}) if os.geteuid() == 0 else None
        workspace = self._workspaces.create(owner)
        sandbox = BubblewrapSandbox(self._tools, workspace, owner, self._workspaces, self._open, self._gate)
        self._open.add(sandbox)
        try:
            async with asyncio.timeout(self._start_timeout):
                await sandbox.start(write_etc(self._workspaces.parent))
        except TimeoutError:
            await sandbox.close()
            raise SandboxError(
                "start_timeout", f"a bubblewrap sandbox was not ready after {self._start_timeout:.0f} s"
            ) from None
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._open)))


class BubblewrapSandbox(Sandbox):
    """One bwrap with its namespaces. Made by the backend."""

    def __init__(
        self,
        tools: Tools,
        directory: Path,
        owner: int | None,
        workspaces: Workspaces,
        siblings: set["BubblewrapSandbox"],
        gate: asyncio.Lock,
    ) -> None:
        self.owner = owner
        self._tools = tools
        self._directory = directory
        self._workspaces = workspaces
        self._siblings = siblings
        self._gate = gate
        self._leftovers = commands.Leftovers()
        self._outer = _Outer()
        self._control: int | None = None
        self._pid = 0
        self._pidfd: int | None = None
        self._markers: set[str] = set()
        self._running: set[int] = set()
        self._closing: asyncio.Task[None] | None = None

    async def start(self, etc: Path) -> None:
        """Start bwrap and wait until the first process inside says that it is ready."""
        control, self._control = os.pipe2(os.O_CLOEXEC)
        _controls.add(self._control)
        fds = [control]
        try:
            fds.append(await commands.open_pipe(self._outer.said, None))
            environment = commands.base_environment(WORKSPACE)
            argv = start_argv(self._tools, self.owner, self._directory, etc)
            await commands.to_the_end(self._outer.start(argv, environment, fds, self._gate))
        finally:
            for fd in fds:
                os.close(fd)
        said = await self._outer.said.until_ready()
        first = children(self._outer.pid)
        if not said.endswith(READY) or not first:
            raise SandboxError("start", why_not(_text(said)))
        self._pid = first[0]
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except ProcessLookupError:
            raise SandboxError("start", "a bubblewrap sandbox died as soon as it was ready") from None

    async def run(self, command: Command) -> ExecResult:
        self._require_alive()
        marker = secrets.token_hex(8)
        self._markers.add(marker)

        async def kill(pid: int) -> None:
            await self._kill(pid, marker)

        result = await commands.run_in_shell(
            [*enter_argv(self._tools, self.owner, self._outer.pid, self._pid), self._tools.bash],
            command,
            home=WORKSPACE,
            marker=marker,
            kill=kill,
            leftovers=self._leftovers,
            running=self._running,
            gate=self._gate,
            owner=self.owner,
        )
        self._require_alive()
        return result

    async def end_processes(self) -> None:
        self._require_alive()
        try:
            async with asyncio.timeout(_END_TIMEOUT):
                pause = 0.001
                while children(self._pid) or any(descendants(pid) for pid in self._running):
                    self._kill_all()
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 0.05)
        except TimeoutError:
            self._require_alive()
            raise SandboxError("hang", f"processes in the sandbox were not dead after {_END_TIMEOUT:.0f} s") from None

    async def alive(self) -> bool:
        return self._is_alive()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if self._control is not None:
            _controls.discard(self._control)
            os.close(self._control)
            self._control = None
        await self._outer.end(at_once=self._pidfd is None)
        self._leftovers.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        await self._workspaces.remove(self._directory)
        self._siblings.discard(self)

    async def _kill(self, pid: int, marker: str) -> None:
        """Kill one command: what descends from it, and the orphans that carry its marker or none that we gave."""
        await halt(pid)
        if not children(pid):
            # It had not entered the sandbox yet, or its command is gone already.
            send_signal([pid])
        send_signal([pid], signal.SIGCONT)
        for round_ in range(_KILL_ROUNDS):
            tree = descendants(pid)
            for orphan in children(self._pid):
                if self._belongs(orphan, marker):
                    tree += [orphan, *descendants(orphan)]
            if not tree:
                return
            send_signal(tree)
            # nsenter stops itself when its child is stopped, and would not see the child's end.
            send_signal([pid], signal.SIGCONT)
            await asyncio.sleep(min(0.001 * (round_ + 1), 0.02))
        self._kill_all()

    def _belongs(self, orphan: int, marker: str) -> bool:
        # A process in the midst of an exec shows no environment for a moment, hence the second look.
        shown = marker_of(orphan) or marker_of(orphan)
        return shown == marker or shown not in self._markers

    def _kill_all(self) -> None:
        if self._control is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._control, b"\n")

    def _is_alive(self) -> bool:
        if self._closing is not None or self._pidfd is None:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    def _require_alive(self) -> None:
        if self._closing is not None:
            raise SandboxError("closed", "the sandbox was closed")
        if not self._is_alive():
            raise SandboxError("died", "the sandbox's first process is gone, and all others with it")


class _Said(asyncio.Protocol):
    """What bwrap and the first process write until they are ready or gone. It arrives in pieces."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._settled = asyncio.Event()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._data.endswith(READY):
            self._settled.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settled.set()

    async def until_ready(self) -> bytes:
        await self._settled.wait()
        self.close()
        return bytes(self._data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Outer:
    """The bwrap process, which stays outside and ends when the first process inside does."""

    def __init__(self) -> None:
        self.said = _Said()
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

    async def start(self, argv: list[str], env: Mapping[str, str], fds: list[int], gate: asyncio.Lock) -> None:
        self._child = await Child.start(argv, env, fds, gate)

    async def end(self, *, at_once: bool) -> None:
        """Wait for its end, which follows that of the first process, or bring it about."""
        self.said.close()
        if self._child is None:
            return
        for grace in (0.0 if at_once else _END_TIMEOUT, _END_TIMEOUT):
            try:
                async with asyncio.timeout(grace):
                    await self._child.exited.wait()
            except TimeoutError:
                # Its child waits for a word from it, and would wait for ever.
                await halt(self.pid)
                send_signal([*descendants(self.pid), self.pid])


def _text(data: bytes) -> str:
    return data.decode(errors="replace").strip()

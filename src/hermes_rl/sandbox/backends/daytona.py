"""Backend `daytona`: Daytona sandboxes, through its SDK. The SDK reads the key from DAYTONA_API_KEY.

The guest agent runs under a small relay in a PTY session (one websocket) in raw mode: Daytona's other ways to run a
command merge stdout and stderr and treat them as text. Daytona sells whole GiB and whole CPUs: `memory_mb` is rounded
up, CPUs and disk are settings of the backend.
Daytona's own agent serves every process inside a sandbox (port 2280 in its source), so a policy can become root there.
"""

import asyncio
import math
import secrets
import warnings
from importlib import resources
from typing import Any

import aiohttp
from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    CreateSandboxFromImageParams,
    DaytonaAuthenticationError,
    DaytonaConfig,
    DaytonaError,
    DaytonaForbiddenError,
    DaytonaNotFoundError,
    DaytonaRateLimitError,
    Resources,
)
from daytona.handle.async_pty_handle import AsyncPtyHandle

from hermes_rl.core.errors import ConfigError, HermesRLError, SandboxError
from hermes_rl.sandbox.backends.cloud import CloudBackend, CloudSandbox
from hermes_rl.sandbox.guest_agent.client import PROGRAM, QueuedTransport
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.spec import ROOT, Capabilities, SandboxSpec

RELAY = resources.files("hermes_rl.sandbox.backends").joinpath("terminal_relay.pl").read_text()

_KEY_HINT = "set DAYTONA_API_KEY (and DAYTONA_API_URL, if it is not Daytona's own cloud)"
# Idle: the owner no longer refreshes the sandbox. It is deleted as soon as it has stopped.
_IDLE_MINUTES = 10
_REMOVE_TIME = 50.0
# Daytona's agent closes a connection that sends more than 64 KiB at once.
_MAX_MESSAGE = 32 * 1024
_MAX_OUTPUT_SHOWN = 2000


class DaytonaBackend(CloudBackend):
    """Sandboxes of one Daytona account. `cpus` and `disk_gb` are per sandbox, `hours` is the maximum lifetime."""

    name = "daytona"

    def __init__(
        self,
        *,
        api_url: str | None = None,
        target: str | None = None,
        cpus: int = 1,
        disk_gb: int = 3,
        ledger: SandboxLedger | None = None,
        **common: Any,
    ) -> None:
        super().__init__(ledger=ledger, **common)
        self.capabilities = Capabilities(
            isolates_files=True,
            isolates_processes=True,
            network_off=True,
            network_on=True,
            limits=frozenset({"memory_mb"}),
            images=True,
            root_user=True,
            writable_root=True,
        )
        self._api_url = api_url
        self._target = target
        self._cpus = cpus
        self._disk_gb = disk_gb
        self._client: AsyncDaytona | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {"api_url": self._api_url} if self._api_url else {}

    @property
    def client(self) -> AsyncDaytona:
        """The SDK's client, created in the running loop on first use."""
        if self._client is None:
            # Each sandbox holds a connection, so there is no limit here.
            config = DaytonaConfig(api_url=self._api_url, connection_pool_maxsize=None)
            try:
                with warnings.catch_warnings():
                    # The SDK itself reads a field that it marks as deprecated.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    self._client = AsyncDaytona(config)
            except DaytonaError as error:
                raise self.translate_error(error) from error
        return self._client

    def sandbox(self, spec: SandboxSpec) -> "DaytonaSandbox":
        return DaytonaSandbox(self, spec, self._request(spec))

    async def terminate(self, machine_id: str | None, name: str) -> bool:
        try:
            machine = await self.client.get(machine_id or name)
            await machine.delete(timeout=_REMOVE_TIME, wait=True)
        except DaytonaNotFoundError:
            return False
        return True

    async def disconnect(self) -> None:
        if self._client is not None:
            client: Any = self._client
            self._client = None
            await client.close()

    def translate_error(self, error: Exception) -> Exception:
        if isinstance(error, HermesRLError):
            return error
        if isinstance(error, DaytonaAuthenticationError):
            return ConfigError(f"daytona rejected the credentials: {error}; {_KEY_HINT}")
        if isinstance(error, DaytonaForbiddenError | DaytonaRateLimitError):
            hint = "run fewer sandboxes at once, or ask Daytona for a higher limit"
            return SandboxError("start", f"daytona rejected the request: {error}; {hint}")
        if isinstance(error, DaytonaError | aiohttp.ClientError | OSError):
            return SandboxError("start", f"daytona failed: {str(error) or type(error).__name__}")
        return error

    def _request(self, spec: SandboxSpec) -> CreateSandboxFromImageParams:
        return CreateSandboxFromImageParams(
            image=spec.image or self.image,
            resources=Resources(
                cpu=self._cpus, memory=math.ceil((spec.limits.memory_mb or 1024) / 1024), disk=self._disk_gb
            ),
            os_user=ROOT,
            target=self._target,
            network_block_all=not spec.network,
            auto_stop_interval=_IDLE_MINUTES,
            auto_delete_interval=0,
            ttl_minutes=math.ceil(self.hours * 60),
        )


class DaytonaSandbox(CloudSandbox):
    """One Daytona sandbox. Created by the backend."""

    def __init__(self, backend: DaytonaBackend, spec: SandboxSpec, request: CreateSandboxFromImageParams) -> None:
        super().__init__(backend, spec)
        self._backend = backend
        self._request = request
        self._machine: AsyncSandbox | None = None
        self._stream: _TerminalStream | None = None

    async def open(self) -> None:
        self._request.name = self.name
        self._request.labels = self.labels
        client = self._backend.client
        try:
            self._machine = await self.create_machine(
                client.create(self._request, timeout=0), lambda machine: machine.id
            )
        except DaytonaError as error:
            translated = self._backend.translate_error(error)
            if isinstance(translated, SandboxError):
                message = f"cannot start a sandbox from the image {self._request.image}: {translated}"
                raise SandboxError(translated.cause, message) from error
            raise translated from error
        self._stream = _TerminalStream(self)
        await self._stream.start(self._machine)
        try:
            await self.connect_guest(self._stream)
        except SandboxError as error:
            raise SandboxError("start", f"{error}: {self._stream.terminal_output}") from error

    async def refresh(self) -> None:
        if self._machine is not None:
            await self._machine.refresh_activity()

    async def close_stream(self) -> None:
        if self._stream is not None:
            await self._stream.close()


class _TerminalStream(QueuedTransport):
    """The PTY session, which the relay turns into a byte stream to and from the guest agent."""

    def __init__(self, sandbox: DaytonaSandbox) -> None:
        super().__init__()
        self._guest = sandbox.guest
        self._marker_parts = (secrets.token_hex(8), secrets.token_hex(8))
        self._handle: AsyncPtyHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._before_marker = bytearray()
        self._marker_seen = False
        self._to_acknowledge = 0

    @property
    def terminal_output(self) -> str:
        """What the terminal printed before, or instead of, the relay's marker."""
        output = bytes(self._before_marker[-_MAX_OUTPUT_SHOWN:]).decode(errors="replace").strip()
        return f"{output or 'no output'} (the image needs bash and perl)"

    async def start(self, machine: AsyncSandbox) -> None:
        path = f"/tmp/hermes-rl-{self._marker_parts[0]}"  # noqa: S108 - in the sandbox, removed by the relay itself
        await machine.fs.upload_file(f"{RELAY}__END__\n{PROGRAM}".encode(), path, 60)
        self._handle = await machine.process.create_pty_session(
            f"hermes-rl-{self._marker_parts[0]}", self._receive, cwd="/"
        )
        self._tasks = [asyncio.create_task(self._write(self._handle)), asyncio.create_task(self._watch(self._handle))]
        await self._handle.send_input(f"perl {path} {' '.join(self._marker_parts)}; exit\n")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._handle is not None:
            await self._handle.disconnect()

    # --- the two directions ---

    def _receive(self, data: bytes) -> None:
        if not self._marker_seen:
            # The terminal's greeting, its prompt and the echo of our command come first.
            self._before_marker += data
            before, marker, data = bytes(self._before_marker).partition("".join(self._marker_parts).encode())
            if not marker:
                return
            self._marker_seen = True
            self._to_acknowledge = len(marker)
            self._before_marker = bytearray(before)
        self._to_acknowledge += len(data)
        self._waiting.set()
        self._guest.feed(data)

    async def _write(self, handle: AsyncPtyHandle) -> None:
        while True:
            await self._waiting.wait()
            if not self._marker_seen:
                self._waiting.clear()
                continue
            message = b""
            if self._to_acknowledge:
                message = b"A" + (4).to_bytes(4) + self._to_acknowledge.to_bytes(4)
                self._to_acknowledge = 0
            if chunk := self._take(_MAX_MESSAGE):
                message += b"D" + len(chunk).to_bytes(4) + chunk
            try:
                if message:
                    await handle.send_input(message)
            except DaytonaError as error:
                self._lost(str(error))
                return

    async def _watch(self, handle: AsyncPtyHandle) -> None:
        ended = await handle.wait()
        self._lost(ended.error or "the sandbox or its connection is gone")

    def _lost(self, reason: str) -> None:
        self._guest.mark_lost(f"daytona: {reason}")
        self._room.set()

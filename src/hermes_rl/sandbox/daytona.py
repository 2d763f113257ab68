"""Backend `daytona`: sandboxes of Daytona, with its own SDK. The key is in DAYTONA_API_KEY, as the SDK has it.

The warden runs under a small relay on a terminal session of the sandbox, one websocket, made to carry plain bytes:
Daytona's other ways to run a command merge its outputs and keep them as text. Daytona sells whole GiB and whole
processors: `memory_mb` is rounded up, processors and disk are settings of the backend.
Daytona's own agent answers everybody inside a sandbox (port 2280 in its source), so a policy can become root there.
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

from hermes_rl.errors import ConfigError, HermesRLError, SandboxError
from hermes_rl.sandbox.cloud import CloudBackend, CloudSandbox
from hermes_rl.sandbox.ledger import Ledger
from hermes_rl.sandbox.spec import ROOT, Capabilities, SandboxSpec
from hermes_rl.sandbox.warden import PROGRAM, Outgoing

RELAY = resources.files("hermes_rl.sandbox").joinpath("terminal_relay.pl").read_text()

_KEY = "set DAYTONA_API_KEY (and DAYTONA_API_URL, if it is not Daytona's own cloud)"
# Idle: a sandbox whose owner refreshes it no more. It is deleted as soon as it has stopped.
_IDLE_MINUTES = 10
_REMOVE_TIME = 50.0
# Daytona's agent closes a connection that sends it more than 64 KiB at once.
_MESSAGE = 32 * 1024
_LONGEST_COMPLAINT = 2000


class DaytonaBackend(CloudBackend):
    """Sandboxes of one Daytona account. `cpus` and `disk_gb` are each one's size; `hours` its longest life."""

    name = "daytona"

    def __init__(
        self,
        *,
        api_url: str | None = None,
        target: str | None = None,
        cpus: int = 1,
        disk_gb: int = 3,
        ledger: Ledger | None = None,
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
        """The SDK's client, made in the running loop when it is first needed."""
        if self._client is None:
            # Each sandbox holds a connection, so they are not bounded here.
            config = DaytonaConfig(api_url=self._api_url, connection_pool_maxsize=None)
            try:
                with warnings.catch_warnings():
                    # The SDK itself reads a field that it calls deprecated.
                    warnings.simplefilter("ignore", DeprecationWarning)
                    self._client = AsyncDaytona(config)
            except DaytonaError as error:
                raise self.explained(error) from error
        return self._client

    def sandbox(self, spec: SandboxSpec) -> "DaytonaSandbox":
        return DaytonaSandbox(self, spec, self._order(spec))

    async def terminate(self, number: str | None, name: str) -> bool:
        try:
            machine = await self.client.get(number or name)
            await machine.delete(timeout=_REMOVE_TIME, wait=True)
        except DaytonaNotFoundError:
            return False
        return True

    async def disconnect(self) -> None:
        if self._client is not None:
            client: Any = self._client
            self._client = None
            await client.close()

    def explained(self, error: Exception) -> Exception:
        if isinstance(error, HermesRLError):
            return error
        if isinstance(error, DaytonaAuthenticationError):
            return ConfigError(f"daytona does not let us in: {error}; {_KEY}")
        if isinstance(error, DaytonaForbiddenError | DaytonaRateLimitError):
            advice = "run fewer sandboxes at once, or ask Daytona for a higher limit"
            return SandboxError("start", f"daytona refuses for now: {error}; {advice}")
        if isinstance(error, DaytonaError | aiohttp.ClientError | OSError):
            return SandboxError("start", f"daytona failed: {str(error) or type(error).__name__}")
        return error

    def _order(self, spec: SandboxSpec) -> CreateSandboxFromImageParams:
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
    """One sandbox of Daytona's. Made by the backend."""

    def __init__(self, backend: DaytonaBackend, spec: SandboxSpec, order: CreateSandboxFromImageParams) -> None:
        super().__init__(backend, spec)
        self._backend = backend
        self._order = order
        self._machine: AsyncSandbox | None = None
        self._line: _Line | None = None

    async def open(self) -> None:
        self._order.name = self.name
        self._order.labels = self.labels
        client = self._backend.client
        try:
            self._machine = await self.ordered(client.create(self._order, timeout=0), lambda machine: machine.id)
        except DaytonaError as error:
            told = self._backend.explained(error)
            if isinstance(told, SandboxError):
                raise SandboxError(told.cause, f"no sandbox of the image {self._order.image}: {told}") from error
            raise told from error
        self._line = _Line(self)
        await self._line.start(self._machine)
        try:
            await self.greet(self._line)
        except SandboxError as error:
            raise SandboxError("start", f"{error}: {self._line.complaint}") from error

    async def refresh(self) -> None:
        if self._machine is not None:
            await self._machine.refresh_activity()

    async def hang_up(self) -> None:
        if self._line is not None:
            await self._line.close()


class _Line(Outgoing):
    """The terminal session, which the relay turns into a stream of bytes to the warden and back."""

    def __init__(self, sandbox: DaytonaSandbox) -> None:
        super().__init__()
        self._warden = sandbox.warden
        self._words = (secrets.token_hex(8), secrets.token_hex(8))
        self._handle: AsyncPtyHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._heard = bytearray()
        self._through = False
        self._to_tell = 0

    @property
    def complaint(self) -> str:
        """What the terminal said instead of the relay."""
        said = bytes(self._heard[-_LONGEST_COMPLAINT:]).decode(errors="replace").strip()
        return f"{said or 'it said nothing'} (the image needs bash and perl)"

    async def start(self, machine: AsyncSandbox) -> None:
        path = f"/tmp/hermes-rl-{self._words[0]}"  # noqa: S108 - in the sandbox, removed by the relay itself
        await machine.fs.upload_file(f"{RELAY}__END__\n{PROGRAM}".encode(), path, 60)
        self._handle = await machine.process.create_pty_session(f"hermes-rl-{self._words[0]}", self._hear, cwd="/")
        self._tasks = [asyncio.create_task(self._write(self._handle)), asyncio.create_task(self._watch(self._handle))]
        await self._handle.send_input(f"perl {path} {' '.join(self._words)}; exit\n")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._handle is not None:
            await self._handle.disconnect()

    # --- the two directions ---

    def _hear(self, data: bytes) -> None:
        if not self._through:
            # The terminal's greeting, its prompt and the echo of our command come before.
            self._heard += data
            before, word, data = bytes(self._heard).partition("".join(self._words).encode())
            if not word:
                return
            self._through = True
            self._to_tell = len(word)
            self._heard = bytearray(before)
        self._to_tell += len(data)
        self._waiting.set()
        self._warden.feed(data)

    async def _write(self, handle: AsyncPtyHandle) -> None:
        while True:
            await self._waiting.wait()
            if not self._through:
                self._waiting.clear()
                continue
            message = b""
            if self._to_tell:
                message = b"A" + (4).to_bytes(4) + self._to_tell.to_bytes(4)
                self._to_tell = 0
            if piece := self._take(_MESSAGE):
                message += b"D" + len(piece).to_bytes(4) + piece
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
        self._warden.lost(f"daytona: {reason}")
        self._room.set()

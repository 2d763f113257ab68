"""Backend `modal`: Modal sandboxes, through its SDK.

The SDK reads the token from MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or from its configuration file. The guest agent is
one command of the sandbox, reached over that command's stdin and stdout. Memory and CPUs are limited as requested;
Modal limits neither the disk nor the number of processes of a sandbox.
"""

import asyncio
import contextlib
import math
from typing import Any

import modal
from grpclib.exceptions import StreamTerminatedError
from modal.config import config

from hermes_rl.core.errors import ConfigError, HermesRLError, SandboxError
from hermes_rl.sandbox.backends.cloud import CloudBackend, CloudSandbox
from hermes_rl.sandbox.guest_agent.client import PROGRAM, QueuedTransport
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec

APP = "hermes-rl"

_LOGIN_HINT = "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`"
# Idle: the guest agent has exited.
_IDLE_SECONDS = 120
# The minimum that Modal offers.
_MIN_CPUS = 0.125
_MIN_MEMORY_MB = 128
_CHUNK = 256 * 1024
_STDERR_TIMEOUT = 5.0
_MAX_STDERR = 2000
# Of the environment, which has Modal's own variables, only the image's PATH is kept.
_GUEST_COMMAND = ("bash", "-c", 'exec env -i PATH="$PATH" perl -e "$1"', "guest-agent", PROGRAM)
_SDK_ERRORS = (modal.exception.Error, StreamTerminatedError, OSError)


class ModalBackend(CloudBackend):
    """Sandboxes of one Modal workspace, all in one app. `hours` is the maximum lifetime; Modal allows 24."""

    name = "modal"

    def __init__(self, *, app: str = APP, ledger: SandboxLedger | None = None, **common: Any) -> None:
        super().__init__(ledger=ledger, **common)
        self.capabilities = Capabilities(
            isolates_files=True,
            isolates_processes=True,
            network_off=True,
            network_on=True,
            limits=frozenset({"memory_mb", "cpus"}),
            images=True,
            root_user=True,
            writable_root=True,
        )
        self._app_name = app
        self._client: modal.Client | None = None
        self._app: modal.App | None = None
        self._connecting = asyncio.Lock()

    @property
    def settings(self) -> dict[str, Any]:
        return {"app": self._app_name}

    async def connection(self) -> tuple[modal.Client, modal.App]:
        """Our own client, so that closing it affects no one else, and the app; both created on first use."""
        async with self._connecting:
            if self._client is None:
                token_id, secret = config.get("token_id"), config.get("token_secret")
                if not token_id or not secret:
                    raise ConfigError(f"modal needs a token: {_LOGIN_HINT}")
                self._client = await modal.Client.from_credentials.aio(token_id, secret)
            if self._app is None:
                self._app = await modal.App.lookup.aio(self._app_name, client=self._client, create_if_missing=True)
            return self._client, self._app

    def sandbox(self, spec: SandboxSpec) -> "ModalSandbox":
        return ModalSandbox(self, spec)

    async def terminate(self, machine_id: str | None, name: str) -> bool:
        client, _ = await self.connection()
        try:
            if machine_id is not None:
                machine = await modal.Sandbox.from_id.aio(machine_id, client=client)
            else:
                machine = await modal.Sandbox.from_name.aio(self._app_name, name, client=client)
            await machine.terminate.aio(wait=True)
        except modal.exception.NotFoundError:
            return False
        return True

    async def disconnect(self) -> None:
        if self._client is not None:
            client: Any = self._client
            self._client = self._app = None
            await client.__aexit__(None, None, None)

    def translate_error(self, error: Exception) -> Exception:
        if isinstance(error, HermesRLError):
            return error
        if isinstance(error, modal.exception.AuthError | modal.exception.PermissionDeniedError):
            return ConfigError(f"modal rejected the credentials: {error}; {_LOGIN_HINT}")
        if isinstance(error, modal.exception.ResourceExhaustedError):
            hint = "run fewer sandboxes at once, or ask Modal for a higher limit"
            return SandboxError("start", f"modal rejected the request: {error}; {hint}")
        if isinstance(error, _SDK_ERRORS):
            return SandboxError("start", f"modal failed: {str(error) or type(error).__name__}")
        return error


class ModalSandbox(CloudSandbox):
    """One Modal sandbox. Created by the backend."""

    def __init__(self, backend: ModalBackend, spec: SandboxSpec) -> None:
        super().__init__(backend, spec)
        self._backend = backend
        self._machine: Any = None
        self._stream: _CommandStream | None = None

    async def open(self) -> None:
        client, app = await self._backend.connection()
        limits = self.spec.limits
        memory = max(limits.memory_mb, _MIN_MEMORY_MB) if limits.memory_mb else None
        cpus = max(limits.cpus, _MIN_CPUS) if limits.cpus else None
        name = self.spec.image or self._backend.image
        request = modal.Sandbox.create.aio(
            "sleep",
            "infinity",
            app=app,
            client=client,
            image=modal.Image.from_registry(name),
            name=self.name,
            tags=self.labels,
            memory=(memory, memory) if memory else None,
            cpu=(cpus, cpus) if cpus else None,
            block_network=not self.spec.network,
            timeout=math.ceil(self._backend.hours * 3600),
            idle_timeout=_IDLE_SECONDS,
        )
        try:
            self._machine = await self.create_machine(request, lambda machine: machine.object_id)
        except modal.exception.ImageBuildError as error:
            raise SandboxError("start", f"modal cannot build the image {name}: {error}") from error
        process = await self._machine.exec.aio(*_GUEST_COMMAND, workdir="/", text=False)
        self._stream = _CommandStream(self, process)
        try:
            await self.connect_guest(self._stream)
        except SandboxError as error:
            stderr = await self._stream.stderr()
            raise SandboxError("start", f"{error}: {stderr} (the image {name} needs bash and perl)") from error

    async def refresh(self) -> None:
        """A running command is enough for Modal."""

    async def close_stream(self) -> None:
        if self._stream is not None:
            await self._stream.close()
        if self._machine is not None:
            with contextlib.suppress(*_SDK_ERRORS):
                await self._machine.detach.aio()


class _CommandStream(QueuedTransport):
    """The stdin and stdout of the guest agent's command."""

    def __init__(self, sandbox: ModalSandbox, process: Any) -> None:
        super().__init__()
        self._guest = sandbox.guest
        self._process = process
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stderr(self) -> str:
        try:
            async with asyncio.timeout(_STDERR_TIMEOUT):
                stderr: bytes = await self._process.stderr.read.aio()
        except (*_SDK_ERRORS, TimeoutError):
            return "no output"
        return stderr[:_MAX_STDERR].decode(errors="replace").strip() or "no output"

    # --- the two directions ---

    async def _write(self) -> None:
        try:
            while True:
                await self._waiting.wait()
                chunk = self._take(_CHUNK)
                # The SDK loses what is written while it drains, so each chunk is drained first.
                self._process.stdin.write(chunk)
                await self._process.stdin.drain.aio()
        except (*_SDK_ERRORS, ValueError) as error:
            self._lost(str(error))

    async def _read(self) -> None:
        try:
            async for data in self._process.stdout:
                self._guest.feed(data)
        except _SDK_ERRORS as error:
            self._lost(str(error))
        else:
            self._lost("the sandbox is gone, or its first command has ended")

    def _lost(self, reason: str) -> None:
        self._guest.mark_lost(f"modal: {reason}")
        self._room.set()

"""Backend `modal`: sandboxes of Modal, with its own SDK.

The key is where the SDK has it: in MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or in its configuration file. The warden is
one command of the sandbox, reached over that command's input and output. Memory and processors are held as asked for;
Modal bounds neither the disk nor the number of processes of a sandbox.
"""

import asyncio
import contextlib
import math
from typing import Any

import modal
from grpclib.exceptions import StreamTerminatedError
from modal.config import config

from hermes_rl.errors import ConfigError, HermesRLError, SandboxError
from hermes_rl.sandbox.cloud import CloudBackend, CloudSandbox
from hermes_rl.sandbox.ledger import Ledger
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec
from hermes_rl.sandbox.warden import PROGRAM, Outgoing

APP = "hermes-rl"

_KEY = "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`"
# Idle: a sandbox whose warden has ended.
_IDLE_SECONDS = 120
# The least that Modal sells.
_LEAST_CPUS = 0.125
_LEAST_MEMORY_MB = 128
_PIECE = 256 * 1024
_COMPLAINT_TIME = 5.0
_LONGEST_COMPLAINT = 2000
# Of the environment, which has things of Modal's, only where the image's programs are.
_WARDEN = ("bash", "-c", 'exec env -i PATH="$PATH" perl -e "$1"', "warden", PROGRAM)
_WORLDLY = (modal.exception.Error, StreamTerminatedError, OSError)


class ModalBackend(CloudBackend):
    """Sandboxes of one Modal workspace, all in one app. `hours` is each one's longest life; Modal allows 24."""

    name = "modal"

    def __init__(self, *, app: str = APP, ledger: Ledger | None = None, **common: Any) -> None:
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
        """A client of our own, so that closing it ends nobody else's, and the app, made when it is first needed."""
        async with self._connecting:
            if self._client is None:
                number, secret = config.get("token_id"), config.get("token_secret")
                if not number or not secret:
                    raise ConfigError(f"modal needs a token: {_KEY}")
                self._client = await modal.Client.from_credentials.aio(number, secret)
            if self._app is None:
                self._app = await modal.App.lookup.aio(self._app_name, client=self._client, create_if_missing=True)
            return self._client, self._app

    def sandbox(self, spec: SandboxSpec) -> "ModalSandbox":
        return ModalSandbox(self, spec)

    async def terminate(self, number: str | None, name: str) -> bool:
        client, _ = await self.connection()
        try:
            if number is not None:
                machine = await modal.Sandbox.from_id.aio(number, client=client)
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

    def explained(self, error: Exception) -> Exception:
        if isinstance(error, HermesRLError):
            return error
        if isinstance(error, modal.exception.AuthError | modal.exception.PermissionDeniedError):
            return ConfigError(f"modal does not let us in: {error}; {_KEY}")
        if isinstance(error, modal.exception.ResourceExhaustedError):
            advice = "run fewer sandboxes at once, or ask Modal for a higher limit"
            return SandboxError("start", f"modal refuses for now: {error}; {advice}")
        if isinstance(error, _WORLDLY):
            return SandboxError("start", f"modal failed: {str(error) or type(error).__name__}")
        return error


class ModalSandbox(CloudSandbox):
    """One sandbox of Modal's. Made by the backend."""

    def __init__(self, backend: ModalBackend, spec: SandboxSpec) -> None:
        super().__init__(backend, spec)
        self._backend = backend
        self._machine: Any = None
        self._line: _Line | None = None

    async def open(self) -> None:
        client, app = await self._backend.connection()
        limits = self.spec.limits
        memory = max(limits.memory_mb, _LEAST_MEMORY_MB) if limits.memory_mb else None
        cpus = max(limits.cpus, _LEAST_CPUS) if limits.cpus else None
        name = self.spec.image or self._backend.image
        order = modal.Sandbox.create.aio(
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
            self._machine = await self.ordered(order, lambda machine: machine.object_id)
        except modal.exception.ImageBuildError as error:
            raise SandboxError("start", f"modal cannot build the image {name}: {error}") from error
        process = await self._machine.exec.aio(*_WARDEN, workdir="/", text=False)
        self._line = _Line(self, process)
        try:
            await self.greet(self._line)
        except SandboxError as error:
            said = await self._line.complaint()
            raise SandboxError("start", f"{error}: {said} (the image {name} needs bash and perl)") from error

    async def refresh(self) -> None:
        """The running command is all that Modal asks for."""

    async def hang_up(self) -> None:
        if self._line is not None:
            await self._line.close()
        if self._machine is not None:
            with contextlib.suppress(*_WORLDLY):
                await self._machine.detach.aio()


class _Line(Outgoing):
    """The input and output of the command that is the warden."""

    def __init__(self, sandbox: ModalSandbox, process: Any) -> None:
        super().__init__()
        self._warden = sandbox.warden
        self._process = process
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def complaint(self) -> str:
        """What it said instead of answering."""
        try:
            async with asyncio.timeout(_COMPLAINT_TIME):
                said: bytes = await self._process.stderr.read.aio()
        except (*_WORLDLY, TimeoutError):
            return "it said nothing"
        return said[:_LONGEST_COMPLAINT].decode(errors="replace").strip() or "it said nothing"

    # --- the two directions ---

    async def _write(self) -> None:
        try:
            while True:
                await self._waiting.wait()
                piece = self._take(_PIECE)
                # The SDK forgets what is written while it drains, so the next piece waits for this one.
                self._process.stdin.write(piece)
                await self._process.stdin.drain.aio()
        except (*_WORLDLY, ValueError) as error:
            self._lost(str(error))

    async def _read(self) -> None:
        try:
            async for data in self._process.stdout:
                self._warden.feed(data)
        except _WORLDLY as error:
            self._lost(str(error))
        else:
            self._lost("the sandbox is gone, or its first command has ended")

    def _lost(self, reason: str) -> None:
        self._warden.lost(f"modal: {reason}")
        self._room.set()

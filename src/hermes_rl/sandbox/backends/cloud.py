"""Base of the cloud backends: a provider's machine with a guest agent in it, kept alive by a lease.

Always true: a machine is in the ledger before it is requested and until the provider confirms that it is gone. A cloud
connection does not end with its owner, so the guest agent exits, and kills its processes, when it received nothing for
the length of the lease. The provider then removes the machine as idle, at the latest at the end of its lifetime.
Files are written and the setup runs at each start, the setup as root and under the sandbox's own network rule.
"""

import asyncio
import contextlib
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from hermes_rl.core.errors import HermesRLError, SandboxError
from hermes_rl.sandbox.guest_agent.client import (
    AGENT_ID,
    GuestAgentClient,
    GuestAgentSandbox,
    base_environment,
    container_ids,
)
from hermes_rl.sandbox.images.materialize import Image, materialize
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.protocol import WORKSPACE, Command, probe_by_command
from hermes_rl.sandbox.spec import AGENT, ROOT, Capabilities, SandboxSpec, resolve_spec
from hermes_rl.sandbox.subprocess_vfork import shield_until_done

_log = logging.getLogger(__name__)

T = TypeVar("T")

OWNER_LABEL = "hermes-rl.owner"
SANDBOX_LABEL = "hermes-rl.sandbox"
IMAGE = "debian:12-slim"
START_TIMEOUT = 180.0
LEASE = 120.0
HOURS = 24.0

_PREPARE_TIMEOUT = 60.0
_REMOVE_TIME = 60.0
_DISCONNECT_TIMEOUT = 10.0
# A creation that we no longer wait for may still succeed. How long, and how often, we look for its machine.
_LATE_CREATE = 5.0
_LATE_CREATE_CHECKS = 3
# The guest agent has these, root's commands do not: so they can neither trace it nor reach its descriptors.
_DROPPED_CAPABILITIES = "8 29"
_PREPARE = f"""
set -e
mkdir -p {WORKSPACE}
chown {AGENT_ID}:{AGENT_ID} {WORKSPACE}
chmod 755 {WORKSPACE}
chmod 1777 /tmp
if ! grep -q '^{AGENT}:' /etc/passwd; then
    known=$(cat /etc/passwd)
    printf '%s\\n' '{AGENT}:x:{AGENT_ID}:{AGENT_ID}:{AGENT}:{WORKSPACE}:/bin/bash' "$known" > /etc/passwd
fi
grep -q ':{AGENT_ID}:' /etc/group || echo '{AGENT}:x:{AGENT_ID}:' >> /etc/group
"""


class CloudBackend(ABC):
    """Sandboxes of one account. A provider's subclass creates, reaches and removes its machines."""

    name: str
    capabilities: Capabilities

    def __init__(
        self,
        *,
        image: str | None = None,
        hours: float = HOURS,
        lease: float = LEASE,
        start_timeout: float = START_TIMEOUT,
        ledger: SandboxLedger | None = None,
    ) -> None:
        self.image = image or IMAGE
        self.hours = hours
        self.lease = lease
        self.ledger = ledger or SandboxLedger()
        self._start_timeout = start_timeout
        self._open: set[CloudSandbox] = set()
        self._unremoved: dict[str, Mapping[str, Any]] = {}

    async def probe(self) -> None:
        await probe_by_command(self, "id -u", b"%d\n" % AGENT_ID)

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        """Start and close a sandbox: the provider then builds the image and caches it."""
        resolved = resolve_spec(spec, self.name, self.capabilities)
        report(f"{resolved.image or self.image}: starting a {self.name} sandbox from it")
        async with await self.start(resolved):
            report(f"{resolved.image or self.image}: ready")

    async def start(self, spec: SandboxSpec | None = None) -> "CloudSandbox":
        resolved = resolve_spec(spec or SandboxSpec(), self.name, self.capabilities)
        await self._retry_removals()
        sandbox = self.sandbox(resolved)
        self._open.add(sandbox)
        try:
            try:
                async with asyncio.timeout(self._start_timeout):
                    await sandbox.start()
            except TimeoutError:
                raise SandboxError(
                    "start_timeout", f"a {self.name} sandbox was not ready after {self._start_timeout:g} s"
                ) from None
            await materialize(sandbox, Image(None, resolved), user=ROOT)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._open)))
        await self._retry_removals()
        await self.disconnect()

    async def on_closed(self, sandbox: "CloudSandbox", *, requested: bool) -> None:
        """Remove the machine of a closed sandbox now or, if that fails, before the next start."""
        self._open.discard(sandbox)
        if requested:
            self._unremoved[sandbox.name] = sandbox.resources
            await self._try_remove(sandbox.name)
        else:
            self.ledger.remove(sandbox.name)

    async def reap(self, resources: Mapping[str, Any]) -> None:
        """Remove a machine by its id, or by its name if its owner died before it knew the id; wait until it is gone."""
        machine_id, name = resources.get("id"), resources["name"]
        for check in range(_LATE_CREATE_CHECKS):
            if await self.translate_errors(self.terminate(machine_id, name)) or machine_id is not None:
                return
            if check + 1 < _LATE_CREATE_CHECKS:
                await asyncio.sleep(_LATE_CREATE / _LATE_CREATE_CHECKS)

    async def translate_errors(self, call: Awaitable[T]) -> T:
        """Await an SDK call; its exceptions become our errors, with the next step."""
        try:
            return await call
        except Exception as error:
            translated = self.translate_error(error)
            if translated is error:
                raise
            raise translated from error

    async def _retry_removals(self) -> None:
        for name in tuple(self._unremoved):
            await self._try_remove(name)

    async def _try_remove(self, name: str) -> None:
        try:
            async with asyncio.timeout(_REMOVE_TIME):
                await self.reap(self._unremoved[name])
        except (HermesRLError, TimeoutError) as error:
            _log.warning("cannot remove the %s sandbox %s, will retry: %s", self.name, name, error)
        else:
            self._unremoved.pop(name, None)
            self.ledger.remove(name)

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings with which another instance finds the same account's machines. No secrets."""

    @abstractmethod
    def sandbox(self, spec: SandboxSpec) -> "CloudSandbox":
        """A sandbox that is not started yet."""

    @abstractmethod
    async def terminate(self, machine_id: str | None, name: str) -> bool:
        """Terminate a machine by its id or name and wait until it has ended. Returns whether there was one."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Close the connection to the provider; the next use opens a new one."""

    @abstractmethod
    def translate_error(self, error: Exception) -> Exception:
        """Our error for an error of the SDK or of the connection to the provider; other errors unchanged."""


class CloudSandbox(GuestAgentSandbox):
    """One machine. A provider's subclass creates it and connects `guest`."""

    def __init__(self, backend: CloudBackend, spec: SandboxSpec) -> None:
        self.name = f"hermes-rl-{secrets.token_hex(8)}"
        # PATH is the machine's own.
        base = {name: value for name, value in base_environment(WORKSPACE).items() if name != "PATH"}
        super().__init__(GuestAgentClient(), user=spec.user, env={**base, "USER": spec.user, **spec.env})
        self.spec = spec
        self.resources: Mapping[str, Any] = {"name": self.name, "id": None}
        self._cloud = backend
        self._creating: asyncio.Task[Any] | None = None
        self._keep_alive_task: asyncio.Task[None] | None = None

    def ids(self, user: str) -> tuple[str, str]:
        return container_ids(user)

    @property
    def labels(self) -> dict[str, str]:
        return {OWNER_LABEL: self._cloud.ledger.owner, SANDBOX_LABEL: self.name}

    async def start(self) -> None:
        """Create the machine, wait for its guest agent, and prepare workspace and user."""
        self._record()
        await self._cloud.translate_errors(self.open())
        self._keep_alive_task = asyncio.create_task(self._keep_alive())
        result = await self.run(Command(_PREPARE, _PREPARE_TIMEOUT, cwd="/", user=ROOT, merge_stderr=True))
        if result.exit_code != 0:
            output = result.stdout.decode(errors="replace").strip()
            raise SandboxError("start", f"cannot prepare the {self._cloud.name} machine: {output}")

    async def create_machine(self, request: Awaitable[T], get_id: Callable[[T], str]) -> T:
        """Wait for the machine. Never cancelled half way: the provider would still create it, after our cleanup."""
        self._creating = asyncio.ensure_future(request)
        machine: T = await asyncio.shield(self._creating)
        self.resources = {"name": self.name, "id": get_id(machine)}
        self._record()
        return machine

    async def connect_guest(self, transport: Any) -> None:
        """Send the guest agent its settings and wait until it replies."""
        settings = {
            "keep_env": "1",
            "no_new_privs": "1",
            "withheld": _DROPPED_CAPABILITIES,
            "lease": f"{self._cloud.lease:.0f}",
        }
        self.guest.connect(transport, settings)
        await self.guest.ready

    async def _keep_alive(self) -> None:
        """Renew the lease; mark the guest agent as lost if it does not reply."""
        while True:
            await asyncio.sleep(self._cloud.lease / 4)
            try:
                await self.guest.ping(self._cloud.lease / 2)
            except SandboxError as error:
                self.guest.mark_lost(str(error))
                return
            try:
                await self._cloud.translate_errors(self.refresh())
            except HermesRLError as error:
                _log.warning("%s: %s", self.name, error)

    async def _close(self) -> None:
        self.guest.mark_lost("the sandbox was closed")
        if self._keep_alive_task is not None:
            self._keep_alive_task.cancel()
            await asyncio.gather(self._keep_alive_task, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCONNECT_TIMEOUT):
                await self.close_stream()
        if self._creating is not None:
            await asyncio.wait([self._creating], timeout=_LATE_CREATE)
            self._creating.cancel()
            await asyncio.gather(self._creating, return_exceptions=True)
        await shield_until_done(self._cloud.on_closed(self, requested=self._creating is not None))

    def _record(self) -> None:
        self._cloud.ledger.record(self.name, self._cloud.name, self._cloud.settings, self.resources)

    @abstractmethod
    async def open(self) -> None:
        """Create the machine with `create_machine`, start the guest agent in it, and `connect_guest`."""

    @abstractmethod
    async def refresh(self) -> None:
        """Report to the provider that the machine is in use."""

    @abstractmethod
    async def close_stream(self) -> None:
        """Close the connection to the guest agent. Never raises."""

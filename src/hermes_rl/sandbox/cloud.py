"""What the backends of clouds share: a machine of a provider's, with a warden in it that our process holds by a lease.

Always true: a machine is in the ledger before it is ordered and stays there until the provider says it is gone. The
connection to a cloud does not end with its owner, so the warden ends, with all it runs, when nothing was heard for the
length of the lease, and the provider then removes the machine as idle, or at the latest at the end of its lifetime.
Files and setup are laid out at each start, the setup as root and under the sandbox's own network rule.
"""

import asyncio
import contextlib
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from hermes_rl.errors import HermesRLError, SandboxError
from hermes_rl.sandbox.child import to_the_end
from hermes_rl.sandbox.layout import Image, lay_out
from hermes_rl.sandbox.ledger import Ledger
from hermes_rl.sandbox.protocol import WORKSPACE, Command
from hermes_rl.sandbox.spec import AGENT, ROOT, Capabilities, SandboxSpec, settled
from hermes_rl.sandbox.warden import AGENT_ID, Warden, WardenSandbox, base_environment, container_ids

_log = logging.getLogger(__name__)

T = TypeVar("T")

OWNER_LABEL = "hermes-rl.owner"
SANDBOX_LABEL = "hermes-rl.sandbox"
IMAGE = "debian:12-slim"
START_TIMEOUT = 180.0
LEASE = 120.0
HOURS = 24.0

_PROBE_TIMEOUT = 20.0
_SETTLE_TIME = 60.0
_REMOVE_TIME = 60.0
_HANG_UP_TIME = 10.0
# An order that we do not wait for any more may still be carried out; how long we look for what came of it.
_LATE_CREATE = 5.0
_LATE_LOOKS = 3
# Of what the warden has, what root's commands shall not: then they can neither trace it nor reach its descriptors.
_WITHHELD = "8 29"
_SETTLE = f"""
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
    """Sandboxes of one account. A provider's own class adds how its machines are ordered, reached and removed."""

    name: str
    capabilities: Capabilities

    def __init__(
        self,
        *,
        image: str | None = None,
        hours: float = HOURS,
        lease: float = LEASE,
        start_timeout: float = START_TIMEOUT,
        ledger: Ledger | None = None,
    ) -> None:
        self.image = image or IMAGE
        self.hours = hours
        self.lease = lease
        self.ledger = ledger or Ledger()
        self._start_timeout = start_timeout
        self._open: set[CloudSandbox] = set()
        self._left: dict[str, Mapping[str, Any]] = {}

    async def probe(self) -> None:
        async with await self.start() as sandbox:
            result = await sandbox.exec("id -u", timeout=_PROBE_TIMEOUT)
        if result.stdout != f"{AGENT_ID}\n".encode():
            said = result.stderr.decode(errors="replace").strip()
            raise SandboxError("start", f"a sandbox of {self.name} started but cannot run commands: {said}")

    async def prepare(self, spec: SandboxSpec, say: Callable[[str], object]) -> None:
        """Start one from the image and close it: the provider builds the image then, and keeps what it built."""
        wanted = settled(spec, self.name, self.capabilities)
        say(f"{wanted.image or self.image}: starting a sandbox of {self.name} from it")
        async with await self.start(wanted):
            say(f"{wanted.image or self.image}: ready")

    async def start(self, spec: SandboxSpec | None = None) -> "CloudSandbox":
        wanted = settled(spec or SandboxSpec(), self.name, self.capabilities)
        await self._remove_left()
        sandbox = self.sandbox(wanted)
        self._open.add(sandbox)
        try:
            try:
                async with asyncio.timeout(self._start_timeout):
                    await sandbox.start()
            except TimeoutError:
                raise SandboxError(
                    "start_timeout", f"a sandbox of {self.name} was not ready after {self._start_timeout:g} s"
                ) from None
            await lay_out(sandbox, Image(None, wanted), user=ROOT)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def reap(self, resources: Mapping[str, Any]) -> None:
        """Remove a machine by the provider's number, or, if its owner did not live to know that, by its name."""
        await self.remove(resources)

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._open)))
        await self._remove_left()
        await self.disconnect()

    async def closed(self, sandbox: "CloudSandbox", *, ordered: bool) -> None:
        """A sandbox has closed; its machine is removed now, or, when that fails, before the next one starts."""
        self._open.discard(sandbox)
        if ordered:
            self._left[sandbox.name] = sandbox.resources
            await self._remove_one(sandbox.name)
        else:
            self.ledger.end(sandbox.name)

    async def remove(self, resources: Mapping[str, Any]) -> None:
        """Remove a machine and wait until it is gone; harmless when it is gone already."""
        number, name = resources.get("id"), resources["name"]
        for look in range(_LATE_LOOKS):
            if await self.guarded(self.terminate(number, name)) or number is not None:
                return
            if look + 1 < _LATE_LOOKS:
                await asyncio.sleep(_LATE_CREATE / _LATE_LOOKS)

    async def guarded(self, work: Awaitable[T]) -> T:
        """Wait for something of the SDK; what it raises becomes one of our own errors, with the next step."""
        try:
            return await work
        except Exception as error:
            told = self.explained(error)
            if told is error:
                raise
            raise told from error

    async def _remove_left(self) -> None:
        for name in tuple(self._left):
            await self._remove_one(name)

    async def _remove_one(self, name: str) -> None:
        try:
            async with asyncio.timeout(_REMOVE_TIME):
                await self.remove(self._left[name])
        except (HermesRLError, TimeoutError) as error:
            _log.warning(
                "the sandbox %s of %s could not be removed, it will be tried again: %s", name, self.name, error
            )
        else:
            self._left.pop(name, None)
            self.ledger.end(name)

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What another backend of this class needs to find the same account's machines. No secret."""

    @abstractmethod
    def sandbox(self, spec: SandboxSpec) -> "CloudSandbox":
        """One that is not started yet."""

    @abstractmethod
    async def terminate(self, number: str | None, name: str) -> bool:
        """End a machine by its number or name and wait until it has ended; whether there was one."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Give up the connection to the provider; the next use makes a new one."""

    @abstractmethod
    def explained(self, error: Exception) -> Exception:
        """An error of the SDK, or of the way to the provider, as one of ours; any other as it is."""


class CloudSandbox(WardenSandbox):
    """One machine. A provider's own class orders it and connects `warden`."""

    def __init__(self, backend: CloudBackend, spec: SandboxSpec) -> None:
        self.name = f"hermes-rl-{secrets.token_hex(8)}"
        # The machine says where its programs are.
        ours = {name: value for name, value in base_environment(WORKSPACE).items() if name != "PATH"}
        super().__init__(Warden(), user=spec.user, env={**ours, "USER": spec.user, **spec.env})
        self.spec = spec
        self.resources: Mapping[str, Any] = {"name": self.name, "id": None}
        self._cloud = backend
        self._ordering: asyncio.Task[Any] | None = None
        self._keeping: asyncio.Task[None] | None = None

    def ids(self, user: str) -> tuple[str, str]:
        return container_ids(user)

    @property
    def labels(self) -> dict[str, str]:
        return {OWNER_LABEL: self._cloud.ledger.owner, SANDBOX_LABEL: self.name}

    async def start(self) -> None:
        """Order the machine, wait until its warden answers, and make it an agent's."""
        self._note()
        await self._cloud.guarded(self.open())
        self._keeping = asyncio.create_task(self._keep())
        result = await self.run(Command(_SETTLE, _SETTLE_TIME, cwd="/", user=ROOT, merge_stderr=True))
        if result.exit_code != 0:
            said = result.stdout.decode(errors="replace").strip()
            raise SandboxError("start", f"the machine of {self._cloud.name} cannot be a sandbox: {said}")

    async def ordered(self, order: Awaitable[T], number: Callable[[T], str]) -> T:
        """Wait for the machine. Never cancelled half way: the provider would still make it, after we looked for it."""
        self._ordering = asyncio.ensure_future(order)
        machine: T = await asyncio.shield(self._ordering)
        self.resources = {"name": self.name, "id": number(machine)}
        self._note()
        return machine

    async def greet(self, transport: Any) -> None:
        """Tell the warden how to be, and wait until it answers."""
        settings = {"keep_env": "1", "no_new_privs": "1", "withheld": _WITHHELD, "lease": f"{self._cloud.lease:.0f}"}
        self.warden.connect(transport, settings)
        await self.warden.ready

    async def _keep(self) -> None:
        """Let the warden hear of us, and give it up for lost when it does not answer."""
        while True:
            await asyncio.sleep(self._cloud.lease / 4)
            try:
                await self.warden.ping(self._cloud.lease / 2)
            except SandboxError as error:
                self.warden.lost(str(error))
                return
            try:
                await self._cloud.guarded(self.refresh())
            except HermesRLError as error:
                _log.warning("%s: %s", self.name, error)

    async def _close(self) -> None:
        self.warden.lost("the sandbox was closed")
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HANG_UP_TIME):
                await self.hang_up()
        if self._ordering is not None:
            await asyncio.wait([self._ordering], timeout=_LATE_CREATE)
            self._ordering.cancel()
            await asyncio.gather(self._ordering, return_exceptions=True)
        await to_the_end(self._cloud.closed(self, ordered=self._ordering is not None))

    def _note(self) -> None:
        self._cloud.ledger.begin(self.name, self._cloud.name, self._cloud.settings, self.resources)

    @abstractmethod
    async def open(self) -> None:
        """Order the machine through `ordered`, start the warden in it, and `greet` it."""

    @abstractmethod
    async def refresh(self) -> None:
        """Tell the provider that the machine is in use."""

    @abstractmethod
    async def hang_up(self) -> None:
        """Give up the connection to the warden. Never raises."""

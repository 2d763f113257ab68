"""Backend `ssh`: NOT a sandbox. Workspaces on another machine, where commands run as the login user.

Commands have that user's files and that machine's network. The backend still provides a scrubbed environment, a
separate workspace as HOME, and killing of remote process trees, even if this process dies or the network drops.
"""

import asyncio
import logging
import posixpath
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.backends.ssh_connections import Address, Connections, Session
from hermes_rl.sandbox.guest_agent.client import PROGRAM, GuestAgentClient, GuestAgentSandbox, base_environment
from hermes_rl.sandbox.images.store import Image, ImageBuilder, ImageStore, materialize
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.protocol import PROBE_TIMEOUT
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec, resolve_spec

_log = logging.getLogger(__name__)

START_TIMEOUT = 60.0
LEASE = 120.0
_INSPECT_TIMEOUT = 20.0
_END_TIME = 30.0
_REAP_TIME = 300.0

_REAP = resources.files("hermes_rl.sandbox.backends").joinpath("ssh_reap.pl").read_text()
# Prints the parent directory of workspaces and the path of bash.
_INSPECT = r"""
    use POSIX ();
    $^O eq 'linux' and -r '/proc/self/stat' or die "this is not Linux with /proc\n";
    my $parent = $ARGV[0] || $ENV{TMPDIR} || '/tmp';
    chdir $parent and -w '.' or die "its directory $parent is not usable, set the backend's `directory`: $!\n";
    my ($bash) = grep { -x } map { "$_/bash" } split /:/, "$ENV{PATH}:/usr/local/bin:/usr/bin:/bin";
    defined $bash or die "bash was not found\n";
    print join "\0", POSIX::getcwd(), $bash;
"""
_MAKE_DIRECTORIES = r"""
    umask 077;
    for my $directory (map { "$ARGV[-1]$_" } '', '/workspace', '/scratch') {
        mkdir $directory or die "cannot create $directory: $!\n";
    }
"""


@dataclass
class _SshState:
    """State shared by the sandboxes of one backend."""

    address: Address
    connections: Connections
    ledger: SandboxLedger
    lease: float
    open: "set[SshSandbox]" = field(default_factory=set)

    async def reap(self, directory: str) -> None:
        """Kill what is left of a sandbox on the remote machine and remove its directory."""
        await self.connections.run(_REAP, [], f"{directory}\n", _REAP_TIME)


@dataclass(frozen=True, slots=True)
class _RemoteHost:
    """Where the remote machine has its workspaces and bash."""

    parent: str
    bash: str


class SshBackend:
    """Runs commands on another machine. Never chosen unless named.

    `key` and `known_hosts` are paths, by default those of the user's ssh. `directory` is the remote directory for
    workspaces. `lease` is how many seconds the remote machine waits for a ping before it ends a sandbox.
    """

    name = "ssh"
    capabilities = Capabilities(isolates_files=False, isolates_processes=False, network_off=False, network_on=True)

    def __init__(
        self,
        *,
        host: str,
        port: int = 22,
        username: str | None = None,
        key: str | Path | None = None,
        known_hosts: str | Path | None = None,
        directory: str | None = None,
        start_timeout: float = START_TIMEOUT,
        lease: float = LEASE,
        ledger: SandboxLedger | None = None,
    ) -> None:
        address = Address(host, port, username, _absolute(key), _absolute(known_hosts))
        self._shared = _SshState(address, Connections(address, lease / 4), ledger or SandboxLedger(), lease)
        self._directory = directory
        self._start_timeout = start_timeout
        # A setup baked on one machine is not valid on another.
        self._images = ImageStore(ImageBuilder(f"{self.name} {address}", self._start_for_baking))
        self._host: _RemoteHost | None = None

    async def probe(self) -> None:
        async with await self.start() as sandbox:
            result = await sandbox.exec("true", timeout=PROBE_TIMEOUT)
        if result.exit_code != 0:
            stderr = result.stderr.decode(errors="replace")
            raise SandboxError("start", f"bash cannot run commands on {self._shared.address}: {stderr}")

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        await self._images.image(resolve_spec(spec, self.name, self.capabilities), report)

    async def start(self, spec: SandboxSpec | None = None) -> "SshSandbox":
        resolved = resolve_spec(spec or SandboxSpec(), self.name, self.capabilities)
        image = await self._images.image(resolved)
        sandbox: SshSandbox | None = None
        try:
            async with asyncio.timeout(self._start_timeout):
                sandbox = SshSandbox(self._shared, await self._inspect_host(), resolved)
                await sandbox.start(image)
        except BaseException as error:
            if sandbox is not None:
                await sandbox.close()
            if isinstance(error, TimeoutError):
                raise SandboxError(
                    "start_timeout", f"no sandbox was ready on {self._shared.address} in {self._start_timeout:.0f} s"
                ) from None
            raise
        return sandbox

    async def _start_for_baking(self, spec: SandboxSpec, _: Path | None) -> "SshSandbox":
        return await self.start(spec)

    async def reap(self, resources: Mapping[str, Any]) -> None:
        """Processes end when their owner's connection closes; this removes what a network failure or a kill left."""
        await self._shared.reap(resources["directory"])

    async def close(self) -> None:
        await self._images.close()
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._shared.open)))
        await self._shared.connections.close_idle()

    async def _inspect_host(self) -> _RemoteHost:
        if self._host is None:
            output = await self._shared.connections.run(_INSPECT, [self._directory or ""], "", _INSPECT_TIMEOUT)
            parent, _, bash = output.partition("\0")
            self._host = _RemoteHost(parent, bash)
        return self._host


class SshSandbox(GuestAgentSandbox):
    """A directory on the remote machine and the processes started for it."""

    def __init__(self, shared: _SshState, host: _RemoteHost, spec: SandboxSpec) -> None:
        self.name = f"hermes-rl-{secrets.token_hex(8)}"
        self._directory = posixpath.join(host.parent, self.name)
        self.workspace = posixpath.join(self._directory, "workspace")
        self.scratch = posixpath.join(self._directory, "scratch")
        super().__init__(GuestAgentClient(), env={**base_environment(self.workspace), **spec.env})
        self._session = Session(self.guest.feed, self.guest.mark_lost)
        self._shared = shared
        self._bash = host.bash
        self._pinging: asyncio.Task[None] | None = None
        shared.open.add(self)

    async def start(self, image: Image) -> None:
        shared = self._shared
        shared.ledger.record(self.name, "ssh", asdict(shared.address), {"directory": self._directory})
        # ssh_reap.pl recognizes the guest agent by these last two arguments.
        arguments = ["hermes-rl-sandbox", self._directory]
        await shared.connections.open(self._session, _MAKE_DIRECTORIES + PROGRAM, arguments)
        settings = {"shell": self._bash, "remove": self._directory, "lease": str(shared.lease)}
        self.guest.connect(self._session, settings)
        try:
            await self.guest.ready
        except SandboxError as error:
            reason = self._session.stderr or str(error)
            raise SandboxError("start", f"cannot start a sandbox on {shared.address}: {reason}") from None
        self._pinging = asyncio.ensure_future(self._keep_lease())
        await materialize(self, image)

    async def _keep_lease(self) -> None:
        lease = self._shared.lease
        try:
            while True:
                await asyncio.sleep(lease / 4)
                await self.guest.ping(lease * 3 / 4)
        except SandboxError:
            self.guest.mark_lost(f"{self._shared.address} did not answer for {lease:g} s")
            self._session.abort()

    async def _close(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
        gone = not self._session.opened or await self._session.end(_END_TIME)
        self.guest.mark_lost("the sandbox was closed")
        try:
            if not gone:
                await self._shared.reap(self._directory)
            self._shared.ledger.remove(self.name)
        except SandboxError as error:
            # It stays in the ledger, and its lease expires.
            _log.warning("sandbox %s on %s may be left: %s", self._directory, self._shared.address, error)
        self._shared.open.discard(self)


def _absolute(path: str | Path | None) -> str | None:
    """For the ledger: its reader may run in another directory."""
    return None if path is None else str(Path(path).expanduser().absolute())

"""Backend `ssh`: NOT a sandbox. Workspaces on another machine, where commands run as the user who logs in.

They see that user's files and that machine's network. What it keeps: a scrubbed environment, a workspace of its own as
HOME, and the killing of process trees over there, also when this process dies or the network drops without a word.
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

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.images import Image, ImageStore, Kitchen, lay_out
from hermes_rl.sandbox.ledger import Ledger
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec, settled
from hermes_rl.sandbox.ssh_connections import Address, Connections, Session
from hermes_rl.sandbox.warden import PROGRAM, Warden, WardenSandbox, base_environment

_log = logging.getLogger(__name__)

START_TIMEOUT = 60.0
LEASE = 120.0
_PROBE_TIMEOUT = 20.0
_LOOK_TIME = 20.0
_END_TIME = 30.0
_REAP_TIME = 300.0

_REAP = resources.files("hermes_rl.sandbox").joinpath("ssh_reap.pl").read_text()
# Prints where workspaces go, and bash.
_LOOK = r"""
    use POSIX ();
    $^O eq 'linux' and -r '/proc/self/stat' or die "this is no Linux with a /proc\n";
    my $parent = $ARGV[0] || $ENV{TMPDIR} || '/tmp';
    chdir $parent and -w '.' or die "its directory $parent cannot be used, set the backend's `directory`: $!\n";
    my ($bash) = grep { -x } map { "$_/bash" } split /:/, "$ENV{PATH}:/usr/local/bin:/usr/bin:/bin";
    defined $bash or die "bash was not found\n";
    print join "\0", POSIX::getcwd(), $bash;
"""
_MAKE_DIRECTORIES = r"""
    umask 077;
    for my $directory (map { "$ARGV[-1]$_" } '', '/workspace', '/scratch') {
        mkdir $directory or die "cannot make $directory: $!\n";
    }
"""


@dataclass
class _Shared:
    """What the workspaces of one backend share."""

    address: Address
    connections: Connections
    ledger: Ledger
    lease: float
    open: "set[SshSandbox]" = field(default_factory=set)

    async def reap(self, directory: str) -> None:
        """Kill what is left of a sandbox over there and remove its directory."""
        await self.connections.run(_REAP, [], f"{directory}\n", _REAP_TIME)


@dataclass(frozen=True, slots=True)
class _Place:
    """What the other machine told of itself."""

    parent: str
    bash: str


class SshBackend:
    """Runs commands on another machine. Never chosen unless it is named.

    `key` and `known_hosts` are paths, by default what the user's ssh takes. `directory`, over there, is where
    workspaces are made. `lease` is how long the other machine waits for a sign of life before it ends a sandbox.
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
        ledger: Ledger | None = None,
    ) -> None:
        address = Address(host, port, username, _absolute(key), _absolute(known_hosts))
        self._shared = _Shared(address, Connections(address, lease / 4), ledger or Ledger(), lease)
        self._directory = directory
        self._start_timeout = start_timeout
        # What a setup makes of one machine's programs is of no use on another.
        self._images = ImageStore(Kitchen(f"{self.name} {address}", self._start_to_bake))
        self._place: _Place | None = None

    async def probe(self) -> None:
        async with await self.start() as sandbox:
            result = await sandbox.exec("true", timeout=_PROBE_TIMEOUT)
        if result.exit_code != 0:
            said = result.stderr.decode(errors="replace")
            raise SandboxError("start", f"bash cannot run commands on {self._shared.address}: {said}")

    async def prepare(self, spec: SandboxSpec, say: Callable[[str], object]) -> None:
        await self._images.image(settled(spec, self.name, self.capabilities), say)

    async def start(self, spec: SandboxSpec | None = None) -> "SshSandbox":
        wanted = settled(spec or SandboxSpec(), self.name, self.capabilities)
        image = await self._images.image(wanted)
        sandbox: SshSandbox | None = None
        try:
            async with asyncio.timeout(self._start_timeout):
                sandbox = SshSandbox(self._shared, await self._look(), wanted)
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

    async def _start_to_bake(self, spec: SandboxSpec, _: Path | None) -> "SshSandbox":
        return await self.start(spec)

    async def reap(self, resources: Mapping[str, Any]) -> None:
        """Its processes ended with their owner, who held the connection; what the network or a kill left is here."""
        await self._shared.reap(resources["directory"])

    async def close(self) -> None:
        await self._images.close()
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._shared.open)))
        await self._shared.connections.close_idle()

    async def _look(self) -> _Place:
        if self._place is None:
            said = await self._shared.connections.run(_LOOK, [self._directory or ""], "", _LOOK_TIME)
            parent, _, bash = said.partition("\0")
            self._place = _Place(parent, bash)
        return self._place


class SshSandbox(WardenSandbox):
    """A directory on the other machine and the processes started for it."""

    def __init__(self, shared: _Shared, place: _Place, spec: SandboxSpec) -> None:
        self.name = f"hermes-rl-{secrets.token_hex(8)}"
        self._directory = posixpath.join(place.parent, self.name)
        self.workspace = posixpath.join(self._directory, "workspace")
        self.scratch = posixpath.join(self._directory, "scratch")
        super().__init__(Warden(), env={**base_environment(self.workspace), **spec.env})
        self._session = Session(self.warden.feed, self.warden.lost)
        self._shared = shared
        self._bash = place.bash
        self._pinging: asyncio.Task[None] | None = None
        shared.open.add(self)

    async def start(self, image: Image) -> None:
        shared = self._shared
        shared.ledger.begin(self.name, "ssh", asdict(shared.address), {"directory": self._directory})
        # The last two arguments are what `reap` knows the warden by.
        arguments = ["hermes-rl-sandbox", self._directory]
        await shared.connections.open(self._session, _MAKE_DIRECTORIES + PROGRAM, arguments)
        settings = {"shell": self._bash, "remove": self._directory, "lease": str(shared.lease)}
        self.warden.connect(self._session, settings)
        try:
            await self.warden.ready
        except SandboxError as error:
            reason = self._session.complaints or str(error)
            raise SandboxError("start", f"no sandbox could start on {shared.address}: {reason}") from None
        self._pinging = asyncio.ensure_future(self._keep_lease())
        await lay_out(self, image)

    async def _keep_lease(self) -> None:
        lease = self._shared.lease
        try:
            while True:
                await asyncio.sleep(lease / 4)
                await self.warden.ping(lease * 3 / 4)
        except SandboxError:
            self.warden.lost(f"{self._shared.address} did not answer for {lease:g} s")
            self._session.drop()

    async def _close(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
        gone = not self._session.opened or await self._session.end(_END_TIME)
        self.warden.lost("the sandbox was closed")
        try:
            if not gone:
                await self._shared.reap(self._directory)
            self._shared.ledger.end(self.name)
        except SandboxError as error:
            # It stays in the ledger, and its lease over there ends.
            _log.warning("sandbox %s on %s may be left: %s", self._directory, self._shared.address, error)
        self._shared.open.discard(self)


def _absolute(path: str | Path | None) -> str | None:
    """For the ledger, whose reader may be elsewhere."""
    return None if path is None else str(Path(path).expanduser().absolute())

"""Backend `local`: NOT a sandbox. Commands run on this machine, as this user, with its files and network.

For trusted code and tests. It still provides a scrubbed environment, a separate workspace as HOME, and reliable killing
of process trees, including children in other sessions.
"""

import asyncio
import logging
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.guest_agent import client
from hermes_rl.sandbox.guest_agent.client import PROGRAM, GuestAgentSandbox, base_environment
from hermes_rl.sandbox.guest_agent.socket_transport import SocketTransport
from hermes_rl.sandbox.images.store import Image, ImageBuilder, ImageStore, materialize
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.process_tree import kill_by_argument
from hermes_rl.sandbox.protocol import probe_by_command
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec, resolve_spec
from hermes_rl.sandbox.workspaces import Workspaces, remove_tree

_log = logging.getLogger(__name__)


@dataclass
class _LocalState:
    """State shared by the sandboxes of one backend."""

    ledger: SandboxLedger
    workspaces: Workspaces = field(default_factory=Workspaces)
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    open: "set[LocalSandbox]" = field(default_factory=set)


class LocalBackend:
    """Runs commands on the host itself. Never chosen unless named."""

    name = "local"
    capabilities = Capabilities(isolates_files=False, isolates_processes=False, network_off=False, network_on=True)

    def __init__(self, *, ledger: SandboxLedger | None = None) -> None:
        self._shared = _LocalState(ledger or SandboxLedger())
        self._images = ImageStore(ImageBuilder(self.name, self._start_for_baking))
        self._warned = False

    async def probe(self) -> None:
        await probe_by_command(self, "true", b"")

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        await self._images.image(resolve_spec(spec, self.name, self.capabilities), report)

    async def start(self, spec: SandboxSpec | None = None) -> "LocalSandbox":
        resolved = resolve_spec(spec or SandboxSpec(), self.name, self.capabilities)
        if resolved.hidden and not self._warned:
            self._warned = True
            _log.warning(
                "the backend local hides no files: the agent can read the environment's code, data and answers. Use "
                "bubblewrap or docker to train or evaluate"
            )
        image = await self._images.image(resolved)
        sandbox = LocalSandbox(self._shared, resolved)
        try:
            await sandbox.start(image)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _start_for_baking(self, spec: SandboxSpec, _: Path | None) -> "LocalSandbox":
        return await self.start(spec)

    async def reap(self, resources: Mapping[str, Any]) -> None:
        """The guest agent removes these when its owner dies; they remain only if it was killed too."""
        await kill_by_argument(resources["warden"])
        for directory in resources["directories"]:
            await remove_tree(Path(directory))

    async def close(self) -> None:
        await self._images.close()
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._shared.open)))


class LocalSandbox(GuestAgentSandbox):
    """A directory on the host and the processes started for it."""

    def __init__(self, shared: _LocalState, spec: SandboxSpec) -> None:
        self._transport = SocketTransport()
        self._directories = (shared.workspaces.create(), shared.workspaces.create())
        self.workspace, self.scratch = map(str, self._directories)
        super().__init__(self._transport.guest, env={**base_environment(self.workspace), **spec.env})
        self.name = f"hermes-rl-{secrets.token_hex(8)}"
        self._shared = shared
        shared.open.add(self)

    async def start(self, image: Image) -> None:
        perl = shutil.which("perl", path=client.PATH)
        bash = shutil.which("bash", path=client.PATH)
        if perl is None or bash is None:
            raise SandboxError("start", "the local backend needs bash and perl (apt-get install bash perl-base)")
        parent = str(self._shared.workspaces.parent)
        directories = [self.workspace, self.scratch]
        resources = {"warden": self.name, "directories": [*directories, parent]}
        self._shared.ledger.record(self.name, "local", {}, resources)
        settings = {"shell": bash, "remove": "\0".join(directories)}
        # The name as an argument is how a reaper recognizes the guest agent and its forked subreapers.
        argv = [perl, "-e", PROGRAM, self.name]
        await self._transport.start(argv, base_environment(self.workspace), settings, self._shared.gate)
        await materialize(self, image)

    async def _close(self) -> None:
        await self._transport.close()
        for directory in self._directories:
            await self._shared.workspaces.remove(directory)
        self._shared.open.discard(self)
        self._shared.ledger.remove(self.name)

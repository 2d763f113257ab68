"""Backend `local`: NOT a sandbox. Commands run on this machine, as this user, and see its files and its network.

For trusted code and for tests. What it keeps: a scrubbed environment, a workspace of its own as HOME, and the killing
of process trees, whatever sessions their members made.
"""

import asyncio
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import warden
from hermes_rl.sandbox.images import Image, ImageStore, Kitchen, lay_out
from hermes_rl.sandbox.ledger import Ledger
from hermes_rl.sandbox.piped import PipedWarden
from hermes_rl.sandbox.process_tree import kill_named
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec, settled
from hermes_rl.sandbox.warden import PROGRAM, WardenSandbox, base_environment
from hermes_rl.sandbox.workspaces import Workspaces, remove_tree

_PROBE_TIMEOUT = 20.0


@dataclass
class _Shared:
    """What the workspaces of one backend share."""

    ledger: Ledger
    workspaces: Workspaces = field(default_factory=Workspaces)
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    open: "set[LocalSandbox]" = field(default_factory=set)


class LocalBackend:
    """Runs commands on the host itself. Never chosen unless it is named."""

    name = "local"
    capabilities = Capabilities(isolates_files=False, isolates_processes=False, network_off=False, network_on=True)

    def __init__(self, *, ledger: Ledger | None = None) -> None:
        self._shared = _Shared(ledger or Ledger())
        self._images = ImageStore(Kitchen(self.name, self._start_to_bake))

    async def probe(self) -> None:
        async with await self.start() as sandbox:
            result = await sandbox.exec("true", timeout=_PROBE_TIMEOUT)
        if result.exit_code != 0:
            raise SandboxError("start", f"bash cannot run commands here: {result.stderr.decode(errors='replace')}")

    async def prepare(self, spec: SandboxSpec, say: Callable[[str], object]) -> None:
        await self._images.image(settled(spec, self.name, self.capabilities), say)

    async def start(self, spec: SandboxSpec | None = None) -> "LocalSandbox":
        wanted = settled(spec or SandboxSpec(), self.name, self.capabilities)
        image = await self._images.image(wanted)
        sandbox = LocalSandbox(self._shared, wanted)
        try:
            await sandbox.start(image)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _start_to_bake(self, spec: SandboxSpec, _: Path | None) -> "LocalSandbox":
        return await self.start(spec)

    async def reap(self, resources: Mapping[str, Any]) -> None:
        """The warden ended with its owner and removed these; they are here when somebody killed it too."""
        await kill_named(resources["warden"])
        for directory in resources["directories"]:
            await remove_tree(Path(directory))

    async def close(self) -> None:
        await self._images.close()
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._shared.open)))


class LocalSandbox(WardenSandbox):
    """A directory on the host and the processes started for it."""

    def __init__(self, shared: _Shared, spec: SandboxSpec) -> None:
        self._piped = PipedWarden()
        self._directories = (shared.workspaces.create(), shared.workspaces.create())
        self.workspace, self.scratch = map(str, self._directories)
        super().__init__(self._piped.warden, env={**base_environment(self.workspace), **spec.env})
        self.name = f"hermes-rl-{secrets.token_hex(8)}"
        self._shared = shared
        shared.open.add(self)

    async def start(self, image: Image) -> None:
        perl = shutil.which("perl", path=warden.PATH)
        bash = shutil.which("bash", path=warden.PATH)
        if perl is None or bash is None:
            raise SandboxError("start", "the local backend needs bash and perl (apt-get install bash perl-base)")
        parent = str(self._shared.workspaces.parent)
        directories = [self.workspace, self.scratch]
        resources = {"warden": self.name, "directories": [*directories, parent]}
        self._shared.ledger.begin(self.name, "local", {}, resources)
        settings = {"shell": bash, "remove": "\0".join(directories)}
        # Its name as an argument is how a reaper knows it, and the keepers that are its copies.
        argv = [perl, "-e", PROGRAM, self.name]
        await self._piped.start(argv, base_environment(self.workspace), settings, self._shared.gate)
        await lay_out(self, image)

    async def _close(self) -> None:
        await self._piped.close()
        for directory in self._directories:
            await self._shared.workspaces.remove(directory)
        self._shared.open.discard(self)
        self._shared.ledger.end(self.name)

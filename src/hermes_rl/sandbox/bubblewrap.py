"""Backend `bubblewrap`: Linux namespaces around one workspace, with no daemon.

Always true: the sandbox has no network unless asked for, no capability, no way to make a namespace, none of our
environment, and of the host's files only /usr or an unpacked image, read-only. What it writes is in memory, within its
limits. All of it dies with its first process, which dies with us.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import cgroups
from hermes_rl.sandbox.images import Image, ImageStore, Kitchen, lay_out
from hermes_rl.sandbox.ledger import Ledger
from hermes_rl.sandbox.namespaces import (
    Tools,
    View,
    bwrap_argv,
    etc_files,
    fresh_uid,
    launch_argv,
    require_way_in,
    why_not,
)
from hermes_rl.sandbox.piped import PipedWarden
from hermes_rl.sandbox.protocol import WORKSPACE
from hermes_rl.sandbox.spec import DEFAULT_LIMITS, ROOT, Capabilities, SandboxSpec, settled
from hermes_rl.sandbox.warden import AGENT_ID, WardenSandbox, base_environment

START_TIMEOUT = 20.0
_PROBE_TIMEOUT = 20.0


@dataclass
class _Shared:
    """What the sandboxes of one backend share."""

    ledger: Ledger
    groups: cgroups.ControlGroups = field(default_factory=cgroups.available)
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    open: "set[BubblewrapSandbox]" = field(default_factory=set)


class BubblewrapBackend:
    """Sandboxes for Linux, as root (each under a uid of its own) or as an ordinary user."""

    name = "bubblewrap"

    def __init__(self, *, start_timeout: float = START_TIMEOUT, ledger: Ledger | None = None) -> None:
        self._shared = _Shared(ledger or Ledger())
        self.capabilities = Capabilities(
            isolates_files=True,
            isolates_processes=True,
            network_off=True,
            network_on=True,
            # Where there are no control groups the kernel still counts processes by user, and files by their tmpfs.
            limits=self._shared.groups.limits | {"processes", "disk_mb"},
            images=True,
        )
        self._start_timeout = start_timeout
        self._images = ImageStore(Kitchen(self.name, self._start_to_bake))
        self._tools: Tools | None = None

    async def probe(self) -> None:
        async with await self.start() as sandbox:
            result = await sandbox.exec("id -un", timeout=_PROBE_TIMEOUT)
        if result.stdout != b"agent\n":
            said = result.stderr.decode(errors="replace").strip()
            raise SandboxError("start", f"a bubblewrap sandbox started but cannot run commands: {said}")

    async def prepare(self, spec: SandboxSpec, say: Callable[[str], object]) -> None:
        await self._images.image(settled(spec, self.name, self.capabilities), say)

    async def start(self, spec: SandboxSpec | None = None) -> "BubblewrapSandbox":
        wanted = settled(spec or SandboxSpec(), self.name, self.capabilities)
        image = await self._images.image(wanted)
        owner = fresh_uid({sandbox.owner for sandbox in self._shared.open}) if os.geteuid() == 0 else None
        if owner is not None and image.root is not None:
            require_way_in(image.root)
        return await self._started(BubblewrapSandbox(self._shared, owner, wanted), image)

    async def _start_to_bake(self, spec: SandboxSpec, root: Path | None) -> "BubblewrapSandbox":
        if root is None:
            return await self.start(spec)
        return await self._started(BubblewrapSandbox(self._shared, None, spec, baking=True), Image(root, spec))

    async def _started(self, sandbox: "BubblewrapSandbox", image: Image) -> "BubblewrapSandbox":
        try:
            self._tools = self._tools or Tools.find()
            async with asyncio.timeout(self._start_timeout):
                await sandbox.start(self._tools, image)
        except TimeoutError:
            await sandbox.close()
            raise SandboxError(
                "start_timeout", f"a bubblewrap sandbox was not ready after {self._start_timeout:.0f} s"
            ) from None
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def reap(self, resources: Mapping[str, Any]) -> None:
        """Its processes and files died with their owner; the control groups are left."""
        if left := await cgroups.remove([Path(group) for group in resources["groups"]]):
            raise SandboxError("died", f"the control group {left[0]} cannot be removed: processes in it do not die")

    async def close(self) -> None:
        await self._images.close()
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._shared.open)))


class BubblewrapSandbox(WardenSandbox):
    """One bwrap with its namespaces. Made by the backend; `baking` for the setup of an image, which is run by root."""

    def __init__(self, shared: _Shared, owner: int | None, spec: SandboxSpec, *, baking: bool = False) -> None:
        self._piped = PipedWarden()
        user = {"HOME": "/root", "USER": ROOT} if baking else {}
        super().__init__(self._piped.warden, env={**base_environment(WORKSPACE), **user, **spec.env})
        self._baking = baking
        self.name = f"hermes-rl-{secrets.token_hex(8)}"
        self.owner = owner
        self._shared = shared
        self._spec = spec
        self._groups = shared.groups.groups(self.name, spec.limits)
        shared.open.add(self)

    async def start(self, tools: Tools, image: Image) -> None:
        """Make its control groups, start bwrap, wait until the warden answers, and lay out the files."""
        shared, limits = self._shared, self._spec.limits
        shared.ledger.begin(self.name, "bubblewrap", {}, {"groups": [str(group) for group in self._groups]})
        disk = limits.disk_mb or DEFAULT_LIMITS.disk_mb or 0
        view = View(image.root, disk, bool(self._spec.network), writable=self._baking)
        try:
            shared.groups.make(self.name, limits, extra_memory_mb=view.memory_mb)
        except OSError as error:
            raise SandboxError("start", f"cannot make a control group: {error}") from error
        settings = {
            "alone": "1",
            "inner": "" if self._baking else str(AGENT_ID),
            "no_new_privs": "1",
            "dies_with_parent": "1",
            "own_ipc": "1",
            "guard_proc": "" if self._baking else "1",
            "tmpfs": "" if self._baking else view.tmpfs,
            "processes": str(limits.processes or ""),
        }
        # Root of this machine stays root for a setup, contained like a container's; anybody else has to become it.
        namespace = not self._baking or os.geteuid() != 0
        with etc_files(view) as etc:
            inside = bwrap_argv(tools, etc, view)
            argv = launch_argv(tools, self._groups, self.owner, inside, namespace=namespace)
            environment = base_environment(WORKSPACE)
            try:
                await self._piped.start(argv, environment, settings, shared.gate, tuple(etc.values()))
            except SandboxError as error:
                raise SandboxError(error.cause, why_not(str(error))) from error
        await lay_out(self, image)

    async def _close(self) -> None:
        await self._piped.close()
        left = await cgroups.remove(self._groups)
        self._shared.open.discard(self)
        # What is left stays in the ledger, for the reaper.
        if not left:
            self._shared.ledger.end(self.name)

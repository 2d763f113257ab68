"""Backend `bubblewrap`: Linux namespaces around one workspace, with no daemon.

Always true: the sandbox has no network unless asked for, no capability, no way to make a namespace, none of our
environment, and of the host's files only /usr or an unpacked image, read-only. What it writes is in memory, within its
limits. All of it dies with its first process, which dies with us.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.confined import ConfinedSandbox, Shared, reap_groups, within
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
from hermes_rl.sandbox.protocol import WORKSPACE
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec, settled
from hermes_rl.sandbox.warden import AGENT_ID, base_environment

START_TIMEOUT = 20.0
_PROBE_TIMEOUT = 20.0


class BubblewrapBackend:
    """Sandboxes for Linux, as root (each under a uid of its own) or as an ordinary user."""

    name = "bubblewrap"

    def __init__(self, *, start_timeout: float = START_TIMEOUT, ledger: Ledger | None = None) -> None:
        self._shared = Shared(self.name, ledger or Ledger())
        self.capabilities = Capabilities(
            isolates_files=True,
            isolates_processes=True,
            network_off=True,
            network_on=True,
            # Where there are no control groups the kernel still counts processes by user, and files by their tmpfs.
            limits=self._shared.groups.limits | {"processes", "disk_mb"},
            images=True,
            folders=True,
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
        for folder in wanted.folders.values() if owner is not None else ():
            require_way_in(folder, "folder")
        return await self._started(BubblewrapSandbox(self._shared, owner, wanted), image)

    async def _start_to_bake(self, spec: SandboxSpec, root: Path | None) -> "BubblewrapSandbox":
        if root is None:
            return await self.start(spec)
        return await self._started(BubblewrapSandbox(self._shared, None, spec, baking=True), Image(root, spec))

    async def _started(self, sandbox: "BubblewrapSandbox", image: Image) -> "BubblewrapSandbox":
        async def starting() -> None:
            self._tools = self._tools or Tools.find()
            await sandbox.start(self._tools, image)

        await within(self._start_timeout, sandbox, starting())
        return sandbox

    async def reap(self, resources: Mapping[str, Any]) -> None:
        await reap_groups(resources)

    async def close(self) -> None:
        await self._images.close()
        await self._shared.close()


class BubblewrapSandbox(ConfinedSandbox):
    """One bwrap with its namespaces. Made by the backend; `baking` for the setup of an image, which is run by root."""

    async def start(self, tools: Tools, image: Image) -> None:
        """Make its control groups, start bwrap, wait until the warden answers, and lay out the files."""
        shared, limits = self._shared, self._spec.limits
        folders = {} if self._baking else self._spec.folders
        view = View(image.root, self._disk_mb, bool(self._spec.network), writable=self._baking, folders=folders)
        self._make_groups(view.memory_mb)
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

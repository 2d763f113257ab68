"""Backend `bubblewrap`: Linux namespaces around one workspace, without a daemon.

Always true: the sandbox has no network unless requested, no capabilities, no way to create a namespace, none of our
environment variables, and sees only /usr of the host, or an unpacked image, read-only, without our package and the
environment's own files (see hidden_paths.py). A seccomp filter refuses calls that it does not need. Its files are in
memory, within its limits. All its processes die with its first process, which dies with us.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.backends.bwrap_arguments import (
    SandboxView,
    Tools,
    bwrap_argv,
    etc_files,
    explain_start_failure,
    launch_argv,
)
from hermes_rl.sandbox.backends.namespaced import NamespacedSandbox, NamespacedState, reap_cgroups, start_within
from hermes_rl.sandbox.guest_agent.client import AGENT_ID, base_environment
from hermes_rl.sandbox.hidden_paths import hidden_paths
from hermes_rl.sandbox.images.store import Image, ImageBuilder, ImageStore, materialize
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.protocol import WORKSPACE, probe_by_command
from hermes_rl.sandbox.seccomp import compile_filter
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec, resolve_spec

START_TIMEOUT = 20.0


class BubblewrapBackend:
    """Sandboxes for Linux. Started by root, each gets its own uid; an ordinary user can start them too."""

    name = "bubblewrap"

    def __init__(self, *, start_timeout: float = START_TIMEOUT, ledger: SandboxLedger | None = None) -> None:
        self._shared = NamespacedState(self.name, ledger or SandboxLedger())
        self.capabilities = Capabilities(
            isolates_files=True,
            isolates_processes=True,
            network_off=True,
            network_on=True,
            # These two do not need control groups: RLIMIT_NPROC and the size of a tmpfs.
            limits=self._shared.groups.limits | {"processes", "disk_mb"},
            images=True,
            folders=True,
        )
        self._start_timeout = start_timeout
        self._images = ImageStore(ImageBuilder(self.name, self._start_for_baking))

    async def probe(self) -> None:
        await probe_by_command(self, "id -un", b"agent\n")

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        await self._images.image(resolve_spec(spec, self.name, self.capabilities), report)

    async def start(self, spec: SandboxSpec | None = None) -> "BubblewrapSandbox":
        resolved = resolve_spec(spec or SandboxSpec(), self.name, self.capabilities)
        image = await self._images.image(resolved)
        owner = self._shared.choose_owner(image, resolved)
        return await self._start_sandbox(BubblewrapSandbox(self._shared, owner, resolved), image)

    async def _start_for_baking(self, spec: SandboxSpec, root: Path | None) -> "BubblewrapSandbox":
        if root is None:
            return await self.start(spec)
        return await self._start_sandbox(BubblewrapSandbox(self._shared, None, spec, baking=True), Image(root, spec))

    async def _start_sandbox(self, sandbox: "BubblewrapSandbox", image: Image) -> "BubblewrapSandbox":
        await start_within(self._start_timeout, sandbox, sandbox.start(image))
        return sandbox

    async def reap(self, resources: Mapping[str, Any]) -> None:
        await reap_cgroups(resources)

    async def close(self) -> None:
        await self._images.close()
        await self._shared.close()


class BubblewrapSandbox(NamespacedSandbox):
    """One bwrap with its namespaces. Created by the backend."""

    async def start(self, image: Image) -> None:
        """Create control groups, start bwrap, wait for the guest agent, write the files."""
        tools = Tools.find()
        shared, limits = self._shared, self._spec.limits
        folders = {} if self._baking else self._spec.folders
        view = SandboxView(
            image.root,
            self._disk_mb,
            bool(self._spec.network),
            writable=self._baking,
            folders=folders,
            hidden=hidden_paths(self._spec.hidden),
        )
        self._create_groups(view.memory_mb)
        settings = {
            "alone": "1",
            "inner": "" if self._baking else str(AGENT_ID),
            "no_new_privs": "1",
            "dies_with_parent": "1",
            "own_ipc": "1",
            "guard_proc": "" if self._baking else "1",
            "tmpfs": "" if self._baking else view.tmpfs,
            "processes": str(limits.processes or ""),
            # The guest agent itself writes below /proc.
            "writable": "" if self._baking else "\n".join((*view.writable_mounts, "/dev", "/proc")),
            "seccomp": compile_filter(os.uname().machine).hex(),
        }
        # For a setup, host root stays root, confined as in a container. Other users become root in a namespace.
        namespace = not self._baking or os.geteuid() != 0
        with etc_files(view) as etc:
            bwrap = bwrap_argv(tools, etc, view)
            argv = launch_argv(tools, self._groups, self.owner, bwrap, namespace=namespace)
            environment = base_environment(WORKSPACE)
            try:
                await self._transport.start(argv, environment, settings, shared.gate, tuple(etc.values()))
            except SandboxError as error:
                raise SandboxError(error.cause, explain_start_failure(shared.backend, str(error))) from error
        await materialize(self, image)

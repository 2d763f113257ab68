"""Shared by bubblewrap and singularity: sandboxes on this machine, in control groups, with a guest agent on a pipe.

Always true: a control group that could not be removed stays in the ledger for the reaper.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox import cgroups
from hermes_rl.sandbox.backends.bwrap_arguments import fresh_uid, require_enterable
from hermes_rl.sandbox.guest_agent.client import GuestAgentSandbox, base_environment
from hermes_rl.sandbox.guest_agent.socket_transport import SocketTransport
from hermes_rl.sandbox.images.materialize import Image
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.process_tree import children, is_stopped
from hermes_rl.sandbox.protocol import WORKSPACE
from hermes_rl.sandbox.spec import DEFAULT_LIMITS, ROOT, SandboxSpec

# Between the end of the stream and the end of the process.
_EXIT_TIME = 1.0


@dataclass
class NamespacedState:
    """State shared by the sandboxes of one backend."""

    backend: str
    ledger: SandboxLedger
    groups: cgroups.ControlGroups = field(default_factory=cgroups.available)
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    open: "set[NamespacedSandbox]" = field(default_factory=set)

    def choose_owner(self, image: Image, spec: SandboxSpec) -> int | None:
        """A fresh uid for a sandbox that root starts; ConfigError if that user could not enter its directories."""
        if os.geteuid() != 0:
            return None
        if image.root is not None:
            require_enterable(image.root)
        for folder in spec.folders.values():
            require_enterable(folder, "folder")
        return fresh_uid({sandbox.owner for sandbox in self.open})

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self.open)))


class NamespacedSandbox(GuestAgentSandbox):
    """One sandbox. `owner` is the uid it runs under; `baking` runs the setup of an image as root."""

    def __init__(self, shared: NamespacedState, owner: int | None, spec: SandboxSpec, *, baking: bool = False) -> None:
        self._transport = SocketTransport()
        user = {"HOME": "/root", "USER": ROOT} if baking else {}
        super().__init__(self._transport.guest, env={**base_environment(WORKSPACE), **user, **spec.env})
        self._baking = baking
        self.name = f"hermes-rl-{secrets.token_hex(8)}"
        self.owner = owner
        self._shared = shared
        self._spec = spec
        self._groups = shared.groups.groups(self.name, spec.limits)
        shared.open.add(self)

    @property
    def backend(self) -> str:
        return self._shared.backend

    @property
    def _disk_mb(self) -> int:
        return self._spec.limits.disk_mb or DEFAULT_LIMITS.disk_mb or 0

    def _create_groups(self, extra_memory_mb: int) -> None:
        """Record the control groups in the ledger, then create them."""
        shared = self._shared
        shared.ledger.record(self.name, shared.backend, {}, {"groups": [str(group) for group in self._groups]})
        try:
            shared.groups.create(self.name, self._spec.limits, extra_memory_mb=extra_memory_mb)
        except OSError as error:
            raise SandboxError("start", f"cannot create a control group: {error}") from error

    async def broken_from_outside(self, cause: str) -> bool:
        """Nothing inside can signal the first process of a pid namespace, so what killed or stopped it was outside.

        Only the kernel kills it for something inside, when memory runs out. Its control group counts that; without one
        nobody can tell.
        """
        if cgroups.oom_kills(self._groups) or not (self._shared.groups.limits & {"memory_mb"}):
            return False
        code = await self._transport.wait_exited(_EXIT_TIME)
        if code is not None:
            return 128 < code <= 128 + signal.SIGRTMAX
        return any(is_stopped(pid) for pid in children(self._transport.pid))

    async def _close(self) -> None:
        await self._transport.close()
        left = await cgroups.remove(self._groups)
        self._shared.open.discard(self)
        if not left:
            self._shared.ledger.remove(self.name)


async def start_within(seconds: float, sandbox: NamespacedSandbox, starting: Coroutine[Any, Any, None]) -> None:
    """Wait for a start. If it fails or takes longer, the sandbox is closed."""
    try:
        async with asyncio.timeout(seconds):
            await starting
    except TimeoutError:
        await sandbox.close()
        raise SandboxError(
            "start_timeout", f"a {sandbox.backend} sandbox was not ready after {seconds:.0f} s"
        ) from None
    except BaseException:
        await sandbox.close()
        raise


async def reap_cgroups(resources: Mapping[str, Any]) -> None:
    """Processes and files ended with their owner; only the control groups are left."""
    if left := await cgroups.remove([Path(group) for group in resources["groups"]]):
        raise SandboxError("died", f"cannot remove the control group {left[0]}: its processes do not die")

"""What bubblewrap and singularity have in common: sandboxes of this machine, in control groups, under a warden.

Always true: a control group that could not be removed stays in the ledger, for the reaper.
"""

import asyncio
import secrets
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import cgroups
from hermes_rl.sandbox.ledger import Ledger
from hermes_rl.sandbox.piped import PipedWarden
from hermes_rl.sandbox.protocol import WORKSPACE
from hermes_rl.sandbox.spec import DEFAULT_LIMITS, ROOT, SandboxSpec
from hermes_rl.sandbox.warden import WardenSandbox, base_environment


@dataclass
class Shared:
    """What the sandboxes of one backend share."""

    backend: str
    ledger: Ledger
    groups: cgroups.ControlGroups = field(default_factory=cgroups.available)
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    open: "set[ConfinedSandbox]" = field(default_factory=set)

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self.open)))


class ConfinedSandbox(WardenSandbox):
    """One of them. `owner` is the uid it runs under; `baking` is for the setup of an image, which is run by root."""

    def __init__(self, shared: Shared, owner: int | None, spec: SandboxSpec, *, baking: bool = False) -> None:
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

    @property
    def backend(self) -> str:
        return self._shared.backend

    @property
    def _disk_mb(self) -> int:
        return self._spec.limits.disk_mb or DEFAULT_LIMITS.disk_mb or 0

    def _make_groups(self, extra_memory_mb: int) -> None:
        """Enter the control groups in the ledger, then make them."""
        shared = self._shared
        shared.ledger.begin(self.name, shared.backend, {}, {"groups": [str(group) for group in self._groups]})
        try:
            shared.groups.make(self.name, self._spec.limits, extra_memory_mb=extra_memory_mb)
        except OSError as error:
            raise SandboxError("start", f"cannot make a control group: {error}") from error

    async def _close(self) -> None:
        await self._piped.close()
        left = await cgroups.remove(self._groups)
        self._shared.open.discard(self)
        if not left:
            self._shared.ledger.end(self.name)


async def within(seconds: float, sandbox: ConfinedSandbox, starting: Coroutine[Any, Any, None]) -> None:
    """Wait for a start; one that fails or takes longer leaves nothing."""
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


async def reap_groups(resources: Mapping[str, Any]) -> None:
    """Processes and files died with their owner; the control groups are left."""
    if left := await cgroups.remove([Path(group) for group in resources["groups"]]):
        raise SandboxError("died", f"the control group {left[0]} cannot be removed: processes in it do not die")

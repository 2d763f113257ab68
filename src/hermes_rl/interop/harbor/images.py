"""Builds the machines of tasks ahead: with a network, which the sandboxes made of them do not have.

On bubblewrap a build runs as root in a copy of the unpacked base image, without a daemon. Engines build in a container.
A machine is built once for the same content; what cannot be built is reported and never scored.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from hermes_rl.core.errors import SandboxError
from hermes_rl.interop.harbor.machine import Recipe
from hermes_rl.sandbox.backends.bubblewrap import START_TIMEOUT, BubblewrapSandbox
from hermes_rl.sandbox.backends.namespaced import NamespacedState, start_within
from hermes_rl.sandbox.images.store import Image, ImageBuilder, ImageStore
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.sandbox.spec import Limits, SandboxSpec

MAX_CONCURRENT = 2


class MachineBuilder:
    """Turns recipes into specs of finished machines. `env` holds variables of builds, such as a package index."""

    def __init__(self, backend: Backend, *, network: bool, env: Mapping[str, str]) -> None:
        self._backend = backend
        self._network = network
        self._env = env
        self._state = NamespacedState("bubblewrap", SandboxLedger())
        self._store = ImageStore(ImageBuilder("harbor", self._start))
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def machine(
        self, recipe: Recipe, limits: Limits, *, network: bool | None, timeout: float, report: Callable[[str], object]
    ) -> SandboxSpec:
        """The spec of a built machine; SandboxError with the output of what failed."""
        async with self._slots:
            try:
                async with asyncio.timeout(timeout):
                    spec = await self._built(recipe, report)
                    spec = replace(spec, limits=limits, network=network)
                    if recipe.image is not None:
                        await self._backend.prepare(spec, report)
                    return spec
            except TimeoutError:
                raise SandboxError("setup", f"the build took over {timeout:g} s (build_timeout_sec)") from None

    async def close(self) -> None:
        await self._store.close()
        await self._state.close()

    async def _built(self, recipe: Recipe, report: Callable[[str], object]) -> SandboxSpec:
        if self._backend.name != "bubblewrap" or recipe.image is None:
            return recipe.in_one()
        if not recipe.build:
            return replace(recipe.in_one(), files={})
        first = replace(recipe.first(self._env), network=self._network)
        image = await self._store.image(first, report)
        return recipe.second(str(image.root))

    async def _start(self, spec: SandboxSpec, root: Path | None) -> BubblewrapSandbox:
        sandbox = BubblewrapSandbox(self._state, None, spec, baking=True)
        await start_within(START_TIMEOUT, sandbox, sandbox.start(Image(root, spec)))
        return sandbox

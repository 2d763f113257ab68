import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.backends.local import LocalBackend, LocalSandbox
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec


class Counting:
    """The local backend, counting how many are started at once."""

    name = "counting"
    capabilities = Capabilities(isolates_files=False, isolates_processes=False, network_off=False)

    def __init__(self) -> None:
        self._local = LocalBackend()
        self.starting = self.most_starting = 0
        self.failing = False

    async def probe(self) -> None:
        await self._local.probe()

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        await self._local.prepare(spec, report)

    async def reap(self, resources: Mapping[str, Any]) -> None:
        await self._local.reap(resources)

    async def start(self, spec: SandboxSpec | None = None) -> LocalSandbox:
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        try:
            await asyncio.sleep(0.01)
            if self.failing:
                raise SandboxError("start", "no sandbox today")
            return await self._local.start(spec)
        finally:
            self.starting -= 1

    async def close(self) -> None:
        await self._local.close()


async def test_backends_are_opened_once_when_the_first_sandbox_is_needed() -> None:
    opened: list[Counting] = []

    async def opening() -> list[Counting]:
        await asyncio.sleep(0.01)
        opened.append(Counting())
        return opened

    pool = SandboxPool(opening=opening)
    assert (pool.is_open, opened) == (False, [])
    for sandbox in await asyncio.gather(pool.acquire(), pool.acquire()):
        await pool.release(sandbox)
    assert (pool.is_open, len(opened)) == (True, 1)


async def test_an_opening_that_failed_is_not_repeated_and_keeps_its_error() -> None:
    tried = 0

    async def opening() -> list[Counting]:
        nonlocal tried
        tried += 1
        raise ConfigError("sandbox_settings: no host")

    pool = SandboxPool(opening=opening)
    for _ in range(2):
        with pytest.raises(SandboxError, match="no host"):
            await pool.acquire()
    with pytest.raises(ConfigError, match="no host"):
        await pool.open()
    assert (tried, str(pool.open_error)) == (1, "sandbox_settings: no host")


async def test_live_and_starting_sandboxes_are_bounded() -> None:
    backend = Counting()
    pool = SandboxPool(backend, max_live=4, max_starting=2)
    most = 0

    async def rollout() -> None:
        nonlocal most
        async with pool.sandbox():
            most = max(most, pool.live)
            while most < 4:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)

    async with asyncio.timeout(60):
        await asyncio.gather(*(rollout() for _ in range(20)))
    assert (most, backend.most_starting, pool.live) == (4, 2, 0)


async def test_a_failed_or_cancelled_start_gives_its_place_back() -> None:
    backend = Counting()
    pool = SandboxPool(backend, max_live=1)
    backend.failing = True
    with pytest.raises(SandboxError):
        await pool.acquire()
    backend.failing = False
    starting = asyncio.ensure_future(pool.acquire())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    async with asyncio.timeout(5), pool.sandbox() as sandbox:
        assert await sandbox.alive()


async def test_a_close_that_raises_is_counted_and_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SandboxPool(LocalBackend(), max_live=1)
    async with pool.sandbox() as broken:
        real = broken.close

        async def fail() -> None:
            await real()
            raise RuntimeError("the daemon is gone")

        monkeypatch.setattr(broken, "close", fail)
    assert pool.close_failures == 1
    async with asyncio.timeout(5), pool.sandbox() as sandbox:
        assert await sandbox.alive()


async def test_a_cancelled_rollout_closes_its_sandbox() -> None:
    pool = SandboxPool(LocalBackend())
    held: list[Sandbox] = []

    async def rollout() -> None:
        async with pool.sandbox() as sandbox:
            held.append(sandbox)
            await asyncio.sleep(60)

    running = asyncio.ensure_future(rollout())
    while not held:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not await held[0].alive()
    assert pool.live == 0


async def test_closing_the_pool_closes_what_is_open_and_refuses_the_rest() -> None:
    pool = SandboxPool(LocalBackend())
    sandboxes = [await pool.acquire() for _ in range(3)]
    await pool.close()
    assert not any([await sandbox.alive() for sandbox in sandboxes])
    with pytest.raises(SandboxError, match="closed"):
        await pool.acquire()

"""Membership: which servers are in the rotation, each with the newest weights.

Always true: a server in the rotation has passed a sampling probe since it joined, and has its version fully loaded. A
failed server is out until it passes the probe with the newest weights; there is no limit on attempts.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from hermes_rl.core.backoff import backoff_seconds
from hermes_rl.core.errors import EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.training.version_holds import VersionHolds
from hermes_rl.training.vllm_fleet.routing import newest_version, server_state, unused_versions
from hermes_rl.training.vllm_fleet.server import AdapterWeights, VllmServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VllmTimeouts:
    """In seconds: for a response, a weight load, a sampling probe, and the wait for any server."""

    answer: float = 1200.0
    load: float = 120.0
    probe: float = 60.0
    patience: float = 60.0
    first_pause: float = 0.25
    """Before a failed server is retried; doubles each time."""
    longest_pause: float = 10.0


class Membership:
    def __init__(self, servers: Sequence[VllmServer], timeouts: VllmTimeouts) -> None:
        self.servers = servers
        self.weights: AdapterWeights | None = None
        self.holds = VersionHolds()
        self.left = 0
        """Number of times a server left the rotation."""
        self._timeouts = timeouts
        self._available = asyncio.Event()
        self._reviving: dict[VllmServer, asyncio.Task[None]] = {}
        self._unloading: set[asyncio.Task[None]] = set()

    @property
    def version(self) -> int | None:
        return newest_version(self.servers)

    async def load_weights(self, weights: AdapterWeights) -> list[EndpointError]:
        """Load the weights on all servers and return the errors; a server being revived loads them later."""
        self.weights = weights
        servers = [server for server in self.servers if server not in self._reviving]
        outcomes = await asyncio.gather(*(self._update(server) for server in servers))
        return [error for error in outcomes if error is not None]

    async def wait(self, timeout: float) -> int:
        """Wait for a version that can be sampled from."""
        try:
            async with asyncio.timeout(timeout):
                while (version := self.version) is None:
                    await self._available.wait()
                return version
        except TimeoutError:
            problems = "; ".join(f"{state.address}: {state.problem}" for state in map(server_state, self.servers))
            raise RetryableEndpointError("no_server", f"no vLLM server can sample: {problems}") from None

    def remove(self, server: VllmServer, error: EndpointError) -> None:
        """Take a server out of the rotation until it can sample again."""
        if server.version is not None:
            self.left += 1
        server.version = None
        server.failures += 1
        server.problem = str(error)
        log.warning("vLLM server left the rotation: %s", error)
        if self.version is None:
            self._available.clear()
        if server not in self._reviving:
            self._reviving[server] = asyncio.create_task(self._revive(server))

    def unload_unused_later(self, server: VllmServer) -> None:
        """Call when a request ends. If a load is in progress, it unloads at its end."""
        unused = server.version is not None and unused_versions(server, self.holds.versions)
        if unused and not server.lock.locked():
            task = asyncio.create_task(self._unload_unused_locked(server))
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)

    async def close(self) -> None:
        tasks = [*self._reviving.values(), *self._unloading]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _update(self, server: VllmServer) -> EndpointError | None:
        try:
            await self._bring_up_to_date(server)
        except EndpointError as error:
            self.remove(server, error)
            return error
        return None

    async def _bring_up_to_date(self, server: VllmServer) -> None:
        """Load the newest weights, and let the server into the rotation."""
        async with server.lock:
            while (weights := self.weights) is not None and server.version != weights.version:
                joining = server.version is None
                if joining:
                    await server.refresh_models()
                await server.load_weights(weights, self._timeouts.load)
                if joining:
                    await server.probe(weights.version, self._timeouts.probe)
                    server.generation += 1
                server.version = weights.version
                self._available.set()
            await self._unload_unused(server)

    async def _revive(self, server: VllmServer) -> None:
        timeouts = self._timeouts
        while True:
            await asyncio.sleep(
                backoff_seconds(server.failures - 1, initial=timeouts.first_pause, maximum=timeouts.longest_pause)
            )
            try:
                await self._bring_up_to_date(server)
            except EndpointError as error:
                server.failures += 1
                server.problem = str(error)
                continue
            # A request may have failed on it in the meantime.
            if server.version is not None:
                del self._reviving[server]
                log.warning("vLLM server rejoined the rotation with version %s: %s", server.version, server.address)
                return

    async def _unload_unused_locked(self, server: VllmServer) -> None:
        async with server.lock:
            await self._unload_unused(server)

    async def _unload_unused(self, server: VllmServer) -> None:
        while versions := unused_versions(server, self.holds.versions):
            await server.unload(versions[0], self._timeouts.load)

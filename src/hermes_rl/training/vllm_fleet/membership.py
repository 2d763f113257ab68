"""Membership: which servers are in the rotation, and the newest weights on each of them.

Always true: a server in the rotation has sampled a token since it came in, and holds the weights of its version whole.
One that failed is out until it has done so again with the newest weights, however often that takes.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from hermes_rl.errors import EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.training.vllm_fleet.choosing import newest_version, standing, surplus
from hermes_rl.training.vllm_fleet.server import VllmServer, Weights
from hermes_rl.waiting import pause

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FleetTimes:
    """Seconds: for an answer, for loading weights, for the token that proves a server, for a server to be there."""

    answer: float = 1200.0
    load: float = 120.0
    proof: float = 60.0
    patience: float = 60.0
    first_pause: float = 0.25
    """Before a server that failed is tried again; twice as long each time."""
    longest_pause: float = 10.0


class Membership:
    def __init__(self, servers: Sequence[VllmServer], times: FleetTimes) -> None:
        self.servers = servers
        self.weights: Weights | None = None
        self.left = 0
        """How often a server left the rotation."""
        self._times = times
        self._any = asyncio.Event()
        self._reviving: dict[VllmServer, asyncio.Task[None]] = {}
        self._dropping: set[asyncio.Task[None]] = set()

    @property
    def version(self) -> int | None:
        return newest_version(self.servers)

    async def take(self, weights: Weights) -> list[EndpointError]:
        """Bring the weights onto every server that is not being revived, which gets them then; what went wrong."""
        self.weights = weights
        asked = [server for server in self.servers if server not in self._reviving]
        outcomes = await asyncio.gather(*(self._change(server) for server in asked))
        return [error for error in outcomes if error is not None]

    async def wait(self, timeout: float) -> int:
        """The newest version that can be sampled from, once there is one."""
        try:
            async with asyncio.timeout(timeout):
                while (version := self.version) is None:
                    await self._any.wait()
                return version
        except TimeoutError:
            troubles = "; ".join(f"{one.address}: {one.trouble}" for one in map(standing, self.servers))
            raise RetryableEndpointError("no_server", f"no vLLM server can sample: {troubles}") from None

    def lose(self, server: VllmServer, error: EndpointError) -> None:
        """Out of the rotation, until it can sample again."""
        if server.version is not None:
            self.left += 1
        server.version = None
        server.failures += 1
        server.trouble = str(error)
        log.warning("vLLM server out of the rotation: %s", error)
        if self.version is None:
            self._any.clear()
        if server not in self._reviving:
            self._reviving[server] = asyncio.create_task(self._revive(server))

    def drop_surplus_later(self, server: VllmServer) -> None:
        """To be called when a request ended. Whoever is changing the server does it at the end."""
        if server.version is not None and surplus(server) and not server.changing.locked():
            task = asyncio.create_task(self._drop_when_free(server))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def close(self) -> None:
        tasks = [*self._reviving.values(), *self._dropping]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _change(self, server: VllmServer) -> EndpointError | None:
        try:
            await self._bring(server)
        except EndpointError as error:
            self.lose(server, error)
            return error
        return None

    async def _bring(self, server: VllmServer) -> None:
        """The newest weights onto the server, and the server into the rotation."""
        async with server.changing:
            while (weights := self.weights) is not None and server.version != weights.version:
                outside = server.version is None
                if outside:
                    await server.look()
                await server.take(weights, self._times.load)
                if outside:
                    await server.prove(weights.version, self._times.proof)
                    server.joined += 1
                server.version = weights.version
                self._any.set()
            await self._drop_surplus(server)

    async def _revive(self, server: VllmServer) -> None:
        times = self._times
        while True:
            await asyncio.sleep(pause(server.failures - 1, first=times.first_pause, longest=times.longest_pause))
            try:
                await self._bring(server)
            except EndpointError as error:
                server.failures += 1
                server.trouble = str(error)
                continue
            # Others may have found it wanting before all was done.
            if server.version is not None:
                del self._reviving[server]
                log.warning("vLLM server back in the rotation with version %s: %s", server.version, server.address)
                return

    async def _drop_when_free(self, server: VllmServer) -> None:
        async with server.changing:
            await self._drop_surplus(server)

    async def _drop_surplus(self, server: VllmServer) -> None:
        while versions := surplus(server):
            await server.drop(versions[0], self._times.load)

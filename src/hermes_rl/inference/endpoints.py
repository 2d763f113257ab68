"""The endpoints of a server: opened on first use, chosen among, rested when they fail, followed as engines come and go.

Always true: there is at least one.
"""

import asyncio
import time
from collections.abc import Sequence

import aiohttp

from hermes_rl.errors import EndpointError
from hermes_rl.inference.choosing import chosen, stays
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.endpoint import CONNECT_TIMEOUT, Endpoint
from hermes_rl.inference.pressure import Law
from hermes_rl.inference.readiness import READY_ANSWER, wait_for


class Endpoints:
    """On the loop that uses them first. With a `law`, the requests of each follow it."""

    def __init__(self, configs: Sequence[APIServerConfig], law: Law | None) -> None:
        self.configs, self.law = list(configs), law
        self.moves = 0
        """How often a conversation went on at another endpoint than the one with its prefix."""
        self._opened: list[Endpoint] = []
        self._session: aiohttp.ClientSession | None = None
        self._resting_until: dict[Endpoint, float] = {}

    @property
    def all(self) -> list[Endpoint]:
        """In the order of the configuration."""
        if not self._opened:
            self._opened = [self._open(config) for config in self.configs]
        return self._opened

    def choose(self, preferred: Endpoint | None = None, failed: Endpoint | None = None) -> Endpoint:
        """For a conversation whose prefix is at `preferred`, and which `failed` could not take just now."""
        endpoint = self._choose(preferred, failed)
        self.moves += preferred is not None and endpoint is not preferred
        return endpoint

    def _choose(self, preferred: Endpoint | None, failed: Endpoint | None) -> Endpoint:
        here = self.all
        if len(here) == 1:
            return here[0]
        if preferred not in here or self.rests(preferred) or preferred is failed:
            preferred = None
        elif stays(preferred):
            # Most turns end here: what the others have to do need not be looked at.
            return preferred
        ready = [endpoint for endpoint in here if endpoint is not failed and not self.rests(endpoint)]
        if ready:
            return chosen(ready, preferred)
        return min(here, key=lambda one: (one is failed, self.rests(one), one.in_flight))

    def rest(self, endpoint: Endpoint, seconds: float) -> None:
        """Pass it over for so long, while there are others."""
        self._resting_until[endpoint] = time.monotonic() + seconds

    def rests(self, endpoint: Endpoint) -> bool:
        """Whether it is passed over."""
        return self._resting_until.get(endpoint, 0.0) > time.monotonic()

    def room_beside(self, endpoint: Endpoint) -> bool:
        """Whether another one would take a request at once."""
        return any(one is not endpoint and one.has_room and not self.rests(one) for one in self.all)

    async def follow(self, addresses: Sequence[str]) -> bool:
        """Be those at these addresses from now on, with the settings of the first for all.

        One that is new joins when it answers; one that is gone ends what it has. False while none of them is there:
        then all stays as it is.
        """
        wanted = {address.rstrip("/"): address for address in addresses}
        here = {endpoint.base_url: endpoint for endpoint in self.all}
        settings = self.configs[0]
        joining = [
            self._open(settings.model_copy(update={"base_url": address}))
            for url, address in wanted.items()
            if url not in here
        ]
        answers = await asyncio.gather(*(_answers(endpoint) for endpoint in joining))
        staying = [endpoint for url, endpoint in here.items() if url in wanted]
        endpoints = [*staying, *(endpoint for endpoint, ready in zip(joining, answers, strict=True) if ready)]
        if not endpoints:
            return False
        self._opened, self.configs = endpoints, [endpoint.config for endpoint in endpoints]
        self._resting_until = {one: until for one, until in self._resting_until.items() if one in endpoints}
        for endpoint in here.values():
            if endpoint not in endpoints and endpoint.gate is not None:
                endpoint.gate.turn_away()
        return True

    def figures(self) -> dict[str, float]:
        """How the engines bear their requests; limits are 0 where nobody measures them."""
        gates = [endpoint.gate for endpoint in self._opened if endpoint.gate is not None]
        held = sum(gate.held for gate in gates)
        return {
            "engines": float(len(self._opened)),
            "requests": float(sum(endpoint.in_flight for endpoint in self._opened) - held),
            "requests_limit": float(sum(gate.pressure.limit for gate in gates)),
            "requests_held": float(held),
            "refusals": float(sum(gate.pressure.refusals for gate in gates)),
            "losses": float(sum(gate.pressure.losses for gate in gates)),
            "cuts": float(sum(gate.pressure.cuts for gate in gates)),
            "moves": float(self.moves),
        }

    @property
    def context_tokens(self) -> int | None:
        """The smallest context among those that told theirs."""
        return min((one.context_tokens for one in self._opened if one.context_tokens), default=None)

    async def close(self) -> None:
        """Close all connections; the next use opens them anew."""
        if self._session is not None:
            session, self._session, self._opened = self._session, None, []
            await session.close()

    def _open(self, config: APIServerConfig) -> Endpoint:
        if self._session is None:
            # No limit here: each endpoint bounds its own requests in flight.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
                auto_decompress=True,
            )
        return Endpoint(config, self._session, self.law)


async def _answers(endpoint: Endpoint) -> bool:
    if not endpoint.config.health_check:
        return True
    try:
        await wait_for(endpoint, READY_ANSWER)
    except EndpointError:
        return False
    return True

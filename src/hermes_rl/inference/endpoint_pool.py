"""The endpoints of a server: opened on first use, chosen per request, skipped after failures, replaced at run time.

There is always at least one.
"""

import asyncio
import math
import statistics
import time
from collections.abc import Sequence
from typing import Protocol, TypeVar

import aiohttp

from hermes_rl.core.errors import EndpointError
from hermes_rl.inference.concurrency_limiter import LimiterConfig
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.endpoint import CONNECT_TIMEOUT, Endpoint
from hermes_rl.inference.readiness import READY_ANSWER, wait_for_endpoint

# A request goes to the endpoint that has the conversation's prefix cached, unless another is much less loaded.

# A cached prefix is worth this many requests more than twice the least loaded endpoint's.
PREFIX_BONUS = 8
# The same for endpoints with a known limit, as a fraction of it: half a round of waiting is cheaper than a move.
PREFIX_BONUS_LOAD = 0.5


class RoutingCandidate(Protocol):
    """`limit` is the maximum in flight that it handles; None when it is not measured."""

    in_flight: int

    @property
    def limit(self) -> int | None: ...


C = TypeVar("C", bound=RoutingCandidate)


def pick_endpoint(ready: Sequence[C], holder: C | None) -> C:
    """The holder of the prefix if it is ready and has room, or is not much busier than the least loaded endpoint.

    Otherwise the least loaded endpoint.
    """
    least = min(ready, key=load)
    if holder is None or holder is least or not any(candidate is holder for candidate in ready):
        return least
    return holder if has_headroom(holder) or prefix_outweighs_load(holder, least) else least


def has_headroom(holder: RoutingCandidate) -> bool:
    """Whether the conversation stays here regardless of the load elsewhere."""
    return holder.in_flight < (PREFIX_BONUS if holder.limit is None else holder.limit)


def prefix_outweighs_load(holder: RoutingCandidate, least: RoutingCandidate) -> bool:
    if holder.limit is None:
        return holder.in_flight <= 2 * least.in_flight + PREFIX_BONUS
    return load(holder) <= load(least) + PREFIX_BONUS_LOAD


def load(candidate: RoutingCandidate) -> float:
    if candidate.limit is None:
        return float(candidate.in_flight)
    return candidate.in_flight / max(candidate.limit, 1)


class Endpoints:
    """Bound to the event loop that uses them first. With a `limiter_config`, each adapts its limit on requests."""

    def __init__(self, configs: Sequence[APIServerConfig], limiter_config: LimiterConfig | None) -> None:
        self.configs, self.limiter_config = list(configs), limiter_config
        self.moves = 0
        """Number of times a conversation continued at another endpoint than the one with its prefix."""
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
        """Choose an endpoint for a conversation with its prefix at `preferred` that `failed` just turned down."""
        endpoint = self._choose(preferred, failed)
        self.moves += preferred is not None and endpoint is not preferred
        return endpoint

    def _choose(self, preferred: Endpoint | None, failed: Endpoint | None) -> Endpoint:
        current = self.all
        if len(current) == 1:
            return current[0]
        if preferred not in current or self.is_resting(preferred) or preferred is failed:
            preferred = None
        elif has_headroom(preferred):
            # The common case: there is no need to look at the others.
            return preferred
        ready = [endpoint for endpoint in current if endpoint is not failed and not self.is_resting(endpoint)]
        if ready:
            return pick_endpoint(ready, preferred)
        return min(current, key=lambda endpoint: (endpoint is failed, self.is_resting(endpoint), endpoint.in_flight))

    def rest(self, endpoint: Endpoint, seconds: float) -> None:
        """Skip the endpoint for a while, as long as there are others."""
        self._resting_until[endpoint] = time.monotonic() + seconds

    def is_resting(self, endpoint: Endpoint) -> bool:
        return self._resting_until.get(endpoint, 0.0) > time.monotonic()

    def others_have_room(self, endpoint: Endpoint) -> bool:
        """Whether another endpoint would send a request without waiting."""
        return any(other is not endpoint and other.has_room and not self.is_resting(other) for other in self.all)

    async def follow(self, addresses: Sequence[str]) -> bool:
        """Replace the endpoints by those at these addresses, all with the settings of the first.

        New endpoints join when they answer; removed ones finish their requests. Returns False, and changes nothing,
        when none of them is available.
        """
        wanted = {address.rstrip("/"): address for address in addresses}
        current = {endpoint.base_url: endpoint for endpoint in self.all}
        settings = self.configs[0]
        joining = [
            self._open(settings.model_copy(update={"base_url": address}))
            for url, address in wanted.items()
            if url not in current
        ]
        answers = await asyncio.gather(*(_is_ready(endpoint) for endpoint in joining))
        staying = [endpoint for url, endpoint in current.items() if url in wanted]
        endpoints = [*staying, *(endpoint for endpoint, ready in zip(joining, answers, strict=True) if ready)]
        if not endpoints:
            return False
        self._opened, self.configs = endpoints, [endpoint.config for endpoint in endpoints]
        self._resting_until = {known: until for known, until in self._resting_until.items() if known in endpoints}
        for endpoint in current.values():
            if endpoint not in endpoints and endpoint.gate is not None:
                endpoint.gate.reject_waiting()
        return True

    def figures(self) -> dict[str, float]:
        """Load metrics of the engines; limits are 0 when they are not measured."""
        gates = [endpoint.gate for endpoint in self._opened if endpoint.gate is not None]
        queued = sum(gate.queued for gate in gates)
        return {
            "engines": float(len(self._opened)),
            "requests": float(sum(endpoint.in_flight for endpoint in self._opened) - queued),
            "requests_limit": float(sum(gate.limiter.limit for gate in gates)),
            "requests_held": float(queued),
            "refusals": float(sum(gate.limiter.refusals for gate in gates)),
            "losses": float(sum(gate.limiter.losses for gate in gates)),
            "cuts": float(sum(gate.limiter.cuts for gate in gates)),
            "moves": float(self.moves),
        }

    def latency_metrics(self) -> dict[str, float]:
        """Seconds of each endpoint's latest requests, under Atropos' names: mean, deviation and 99th percentile."""
        metrics = {}
        for number, endpoint in enumerate(self._opened):
            for split, latencies in endpoint.latencies.items():
                if latencies:
                    name = f"server/server_{number}_{'eval_' if split == 'eval' else ''}request_time"
                    ordered = sorted(latencies)
                    metrics[f"{name}_avg"] = statistics.fmean(ordered)
                    metrics[f"{name}_std"] = statistics.pstdev(ordered)
                    metrics[f"{name}_99p"] = ordered[math.ceil(0.99 * len(ordered)) - 1]
        return metrics

    @property
    def context_tokens(self) -> int | None:
        """The smallest known context size among the endpoints."""
        return min((endpoint.context_tokens for endpoint in self._opened if endpoint.context_tokens), default=None)

    async def close(self) -> None:
        """Close all connections; the next use reopens them."""
        if self._session is not None:
            session, self._session, self._opened = self._session, None, []
            await session.close()

    def _open(self, config: APIServerConfig) -> Endpoint:
        if self._session is None:
            # No limit here: each endpoint limits its own requests in flight.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
                auto_decompress=True,
            )
        return Endpoint(config, self._session, self.limiter_config)


async def _is_ready(endpoint: Endpoint) -> bool:
    if not endpoint.config.health_check:
        return True
    try:
        await wait_for_endpoint(endpoint, READY_ANSWER)
    except EndpointError:
        return False
    return True

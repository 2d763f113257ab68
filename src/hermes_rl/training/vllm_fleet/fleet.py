"""VllmFleet: a policy sampled by vLLM servers, which load each new version while they run.

Always true: a completion finishes on the weights it started with, and every token carries their version. Each server
switches to new weights independently, once they are fully loaded; requests go to servers with the newest version, or
with the held version that they name, and are retried on another server if one fails.
"""

import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import aiohttp

from hermes_rl.core.errors import ConfigError, EndpointError
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.endpoint import CONNECT_TIMEOUT, Endpoint
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer
from hermes_rl.training.vllm_fleet.membership import Membership, VllmTimeouts
from hermes_rl.training.vllm_fleet.routing import (
    ServerState,
    choose_server,
    is_server_fault,
    server_state,
    servers_with,
)
from hermes_rl.training.vllm_fleet.server import AdapterWeights, VllmServer

S = TypeVar("S")

CHUNK_TOKENS = 64
MAX_PREFIXES = 65_536
# All prompts of an environment share a system prompt; only the rest identifies a conversation.
MIN_PREFIX_SHARE = 0.75


class PrefixCacheMap(Generic[S]):
    """Which server has a prompt's prefix in its KV cache: an LRU map, separate per version."""

    def __init__(self, max_prefixes: int = MAX_PREFIXES) -> None:
        self._max_prefixes = max_prefixes
        self._holders: OrderedDict[int, S] = OrderedDict()

    def record(self, version: int, ids: Sequence[int], holder: S) -> None:
        for key in _prefix_keys(version, ids):
            self._holders[key] = holder
            self._holders.move_to_end(key)
        while len(self._holders) > self._max_prefixes:
            self._holders.popitem(last=False)

    def holder(self, version: int, ids: Sequence[int]) -> S | None:
        """The server that last computed most of this prompt."""
        found, known = None, 0
        for key in _prefix_keys(version, ids):
            if (holder := self._holders.get(key)) is None:
                break
            found, known = holder, known + CHUNK_TOKENS
        return found if known >= MIN_PREFIX_SHARE * len(ids) else None


def _prefix_keys(version: int, ids: Sequence[int]) -> Iterator[int]:
    """A hash for each complete chunk together with its prefix."""
    key = hash(version)
    for start in range(0, len(ids) - CHUNK_TOKENS + 1, CHUNK_TOKENS):
        key = hash((key, *ids[start : start + CHUNK_TOKENS]))
        yield key


T = TypeVar("T")

# Servers tried per request.
MAX_ATTEMPTS = 3
# The servers queue requests and limit concurrency themselves.
UNLIMITED = 1_000_000
START_HINT = (
    "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-lora-rank RANK --max-loras 4 "
    "--enable-scale-out, where it can read the trainer's run folder"
)


class VllmFleet:
    """Use as `async with`. `run` prefixes adapter names, so that a restarted run unloads its own old adapters."""

    def __init__(
        self, addresses: Sequence[str], *, run: str, api_key: str | None = None, timeouts: VllmTimeouts | None = None
    ) -> None:
        if not addresses:
            raise ConfigError("vllm_servers is empty; give at least one address, like http://127.0.0.1:8000")
        self._timeouts = timeouts or VllmTimeouts()
        session = uuid.uuid4().hex[:6]
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        )
        self._servers = [
            VllmServer(Endpoint(_config(address, run, api_key), self._session), run, session)
            for address in dict.fromkeys(addresses)
        ]
        self._members = Membership(self._servers, self._timeouts)
        self._prefixes: PrefixCacheMap[VllmServer] = PrefixCacheMap()
        self._load_seconds = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._members.close()
        await self._session.close()

    @property
    def version(self) -> int | None:
        return self._members.version

    async def load(self, version: int, folder: Path | None) -> int:
        """Load a PEFT folder, or the base model for None, on every server; returns how many have it.

        Unreachable servers load it when they come back. Raises EndpointError if every reachable server refuses it. A
        version that is already loaded is not loaded again.
        """
        newest = self._members.weights
        if newest is not None and version < newest.version:
            raise ValueError(f"version {version} was loaded after {newest.version}; versions never decrease")
        weights = newest if newest and version == newest.version else AdapterWeights.resolve(version, folder)
        start = time.monotonic()
        errors = await self._members.load_weights(weights)
        self._load_seconds = time.monotonic() - start
        loaded = sum(server.version == version for server in self._servers)
        refused = [error for error in errors if error.cause.startswith("http_")]
        if refused and not loaded:
            raise EndpointError("load_refused", f"no vLLM server accepts version {version}: {refused[0]}; {START_HINT}")
        return loaded

    async def wait_until_ready(self, timeout: float) -> None:
        """Wait for a server that can sample; on timeout raises EndpointError with each server's problem."""
        await self._members.wait(timeout)

    def hold(self, holder: str, version: int | None, seconds: float) -> int | None:
        """A version that is held stays loaded. A server that restarts loads only the newest."""
        version = self.version if version is None else version
        if version is None or not servers_with(self._servers, version):
            return None
        return version if self._members.holds.hold(holder, version, seconds) else None

    async def sample(self, ids: Sequence[int], request: SamplingRequest, version: int | None = None) -> EngineAnswer:
        version, answer = await self._call(
            ids, request.n, lambda server, version: server.sample(version, ids, request, self._timeouts.answer), version
        )
        completions = (each._replace(versions=(version,) * len(each.tokens)) for each in answer.completions)
        return answer._replace(completions=tuple(completions))

    async def logprobs(self, ids: Sequence[int], version: int | None = None) -> tuple[int, list[float | None]]:
        return await self._call(
            ids, 1, lambda server, version: server.logprobs(version, ids, self._timeouts.answer), version
        )

    @property
    def context_tokens(self) -> int | None:
        """The smallest context length that a server reported."""
        return min((server.context_tokens for server in self._servers if server.context_tokens), default=None)

    @property
    def versions_in_use(self) -> frozenset[int]:
        """Versions whose folders a server may still read; other folders may be removed."""
        newest = self._members.weights
        return frozenset({newest.version} if newest else ()).union(*(server.loaded for server in self._servers))

    def states(self) -> list[ServerState]:
        return [server_state(server) for server in self._servers]

    def metrics(self) -> dict[str, float]:
        """Metrics of a training step."""
        active = sum(server.version is not None for server in self._servers)
        return {
            "vllm/servers": float(active),
            "vllm/servers_out": float(len(self._servers) - active),
            "vllm/left": float(self._members.left),
            "vllm/load_seconds": self._load_seconds,
        }

    async def _call(
        self,
        ids: Sequence[int],
        completions: int,
        request: Callable[[VllmServer, int], Awaitable[T]],
        wanted: int | None,
    ) -> tuple[int, T]:
        tries = 0
        while True:
            server, version = await self._next_server(ids, wanted)
            generation = server.generation
            tries += 1
            try:
                with server.in_flight(version, completions):
                    answer = await request(server, version)
            except EndpointError as error:
                if not is_server_fault(error):
                    raise
                # A request from before the server left the rotation says nothing about it now.
                if generation == server.generation and server.version is not None:
                    self._members.remove(server, error)
                if tries == MAX_ATTEMPTS or error.cause == "timeout":
                    raise
            else:
                server.failures = 0
                return version, answer
            finally:
                self._members.unload_unused_later(server)

    async def _next_server(self, ids: Sequence[int], wanted: int | None) -> tuple[VllmServer, int]:
        """A server, and the version to sample from: the one that is wanted if a server has it, else the newest."""
        version = self.version
        if version is None:
            version = await self._members.wait(self._timeouts.patience)
        if wanted is not None and servers_with(self._servers, wanted):
            version = wanted
        if len(self._servers) == 1:
            return self._servers[0], version
        server = choose_server(self._servers, version, self._prefixes.holder(version, ids))
        self._prefixes.record(version, ids, server)
        return server, version


def _config(address: str, run: str, api_key: str | None) -> APIServerConfig:
    return APIServerConfig(
        base_url=address.rstrip("/").removesuffix("/v1") + "/v1",
        model_name=run,
        api_key=api_key,
        server_type=ServerType.VLLM,
        num_max_requests_at_once=UNLIMITED,
    )

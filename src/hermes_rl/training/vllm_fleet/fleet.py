"""VllmFleet: the policy sampled by vLLM servers, which take each new set of weights while they run.

Always true: a completion ends on the weights it began with, and every token says their version. A server flips to new
weights when it has them whole, each on its own; requests go to those that have the newest. What a server that fails was
asked is asked elsewhere.
"""

import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import aiohttp

from hermes_rl.errors import ConfigError, EndpointError
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.endpoint import CONNECT_TIMEOUT, Endpoint
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.tokens.exchange import Answer
from hermes_rl.training.vllm_fleet.choosing import Standing, chosen, servers_fault, standing
from hermes_rl.training.vllm_fleet.membership import FleetTimes, Membership
from hermes_rl.training.vllm_fleet.prefixes import Prefixes
from hermes_rl.training.vllm_fleet.server import VllmServer, Weights

T = TypeVar("T")

# Servers that one request is put to, should each fail.
TRIES = 3
# The servers bound what they compute at once; a queue is theirs to keep.
NO_BOUND = 1_000_000
NEEDED = (
    "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-lora-rank RANK --max-loras 4 "
    "--enable-scale-out, where it can read the trainer's run folder"
)


class VllmFleet:
    """Use as `async with`. `run` names the adapters, so that a run that is started again clears its own away."""

    def __init__(
        self, addresses: Sequence[str], *, run: str, api_key: str | None = None, times: FleetTimes | None = None
    ) -> None:
        if not addresses:
            raise ConfigError("vllm_servers names no server; give the address of one, like http://127.0.0.1:8000")
        self._times = times or FleetTimes()
        life = uuid.uuid4().hex[:6]
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        )
        self._servers = [
            VllmServer(Endpoint(_config(address, run, api_key), self._session), run, life)
            for address in dict.fromkeys(addresses)
        ]
        self._members = Membership(self._servers, self._times)
        self._prefixes: Prefixes[VllmServer] = Prefixes()
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
        """Have every server sample from a PEFT folder, None for the base model; the number that do when it returns.

        Those that are away get it when they come back. EndpointError where all that could be asked refuse it. A version
        that is there already is not loaded again.
        """
        newest = self._members.weights
        if newest is not None and version < newest.version:
            raise ValueError(f"version {version} comes after {newest.version}; a version never goes back")
        weights = newest if newest and version == newest.version else Weights.at(version, folder)
        began = time.monotonic()
        errors = await self._members.take(weights)
        self._load_seconds = time.monotonic() - began
        have = sum(server.version == version for server in self._servers)
        refused = [error for error in errors if error.cause.startswith("http_")]
        if refused and not have:
            raise EndpointError("load_refused", f"no vLLM server takes version {version}: {refused[0]}; {NEEDED}")
        return have

    async def wait_until_ready(self, timeout: float) -> None:
        """Return when a server can sample; EndpointError that names each one's trouble when none can in time."""
        await self._members.wait(timeout)

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> Answer:
        version, answer = await self._ask(
            ids, request.n, lambda server, version: server.sample(version, ids, request, self._times.answer)
        )
        completions = (one._replace(versions=(version,) * len(one.tokens)) for one in answer.completions)
        return answer._replace(completions=tuple(completions))

    async def logprobs(self, ids: Sequence[int]) -> tuple[int, list[float | None]]:
        return await self._ask(ids, 1, lambda server, version: server.logprobs(version, ids, self._times.answer))

    @property
    def context_tokens(self) -> int | None:
        """The smallest context among the servers that told theirs."""
        return min((one.context_tokens for one in self._servers if one.context_tokens), default=None)

    @property
    def versions_in_use(self) -> frozenset[int]:
        """Versions whose folders a server may still read; the others' may be removed."""
        newest = self._members.weights
        return frozenset({newest.version} if newest else ()).union(*(server.loaded for server in self._servers))

    def standings(self) -> list[Standing]:
        return [standing(server) for server in self._servers]

    def figures(self) -> dict[str, float]:
        """For the metrics of a step."""
        inside = sum(server.version is not None for server in self._servers)
        return {
            "vllm/servers": float(inside),
            "vllm/servers_out": float(len(self._servers) - inside),
            "vllm/left": float(self._members.left),
            "vllm/load_seconds": self._load_seconds,
        }

    async def _ask(
        self, ids: Sequence[int], completions: int, question: Callable[[VllmServer, int], Awaitable[T]]
    ) -> tuple[int, T]:
        tries = 0
        while True:
            server, version = await self._next_server(ids)
            joined = server.joined
            tries += 1
            try:
                with server.under_way(version, completions):
                    answer = await question(server, version)
            except EndpointError as error:
                if not servers_fault(error):
                    raise
                # What was asked in an earlier stay in the rotation says nothing of this one.
                if joined == server.joined and server.version is not None:
                    self._members.lose(server, error)
                if tries == TRIES or error.cause == "timeout":
                    raise
            else:
                server.failures = 0
                return version, answer
            finally:
                self._members.drop_surplus_later(server)

    async def _next_server(self, ids: Sequence[int]) -> tuple[VllmServer, int]:
        newest = self.version
        if newest is None:
            newest = await self._members.wait(self._times.patience)
        if len(self._servers) == 1:
            return self._servers[0], newest
        server = chosen(self._servers, newest, self._prefixes.holder(newest, ids))
        self._prefixes.note(newest, ids, server)
        return server, newest


def _config(address: str, run: str, api_key: str | None) -> APIServerConfig:
    return APIServerConfig(
        base_url=address.rstrip("/").removesuffix("/v1") + "/v1",
        model_name=run,
        api_key=api_key,
        server_type=ServerType.VLLM,
        num_max_requests_at_once=NO_BOUND,
    )

"""The fleet's decisions as pure functions: routing, fault attribution, versions to unload."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hermes_rl.core.errors import EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.training.vllm_fleet.server import VllmServer

# Extra completions, compared with the least loaded server, that a cached prompt is worth.
MAX_EXTRA_LOAD = 8


@dataclass(frozen=True, slots=True)
class ServerState:
    """`version` is None while it is out of the rotation, and `problem` says why."""

    address: str
    version: int | None
    running: int
    problem: str


def newest_version(servers: Sequence[VllmServer]) -> int | None:
    return max((server.version for server in servers if server.version is not None), default=None)


def servers_with(servers: Sequence[VllmServer], version: int) -> list[VllmServer]:
    """The servers in the rotation that can sample from a version: their newest, or an older one still loaded."""
    return [
        server
        for server in servers
        if server.version is not None and (server.version == version or version in server.loaded)
    ]


def choose_server(servers: Sequence[VllmServer], version: int, holder: VllmServer | None) -> VllmServer:
    """The least loaded server with that version, or the one with the cached prompt if its load is not much higher."""
    ready = servers_with(servers, version)
    least = min(ready, key=lambda server: server.load)
    return holder if holder in ready and holder.load <= least.load + MAX_EXTRA_LOAD else least


def is_server_fault(error: EndpointError) -> bool:
    """Whether the server is at fault, not the request. A restarted server has no adapters and answers 404."""
    if isinstance(error, RetryableEndpointError):
        return error.cause != "http_429"
    return error.cause in {"http_404", "timeout"}


def unused_versions(server: VllmServer, held: Collection[int]) -> list[int]:
    """Loaded versions that are neither current, nor held, nor in use by a request."""
    return [
        version
        for version in server.loaded
        if version != server.version and version not in held and not server.running[version]
    ]


def server_state(server: VllmServer) -> ServerState:
    problem = "" if server.version is not None else server.problem or "not contacted yet"
    return ServerState(server.address, server.version, server.load, problem)

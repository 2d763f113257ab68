"""Who is asked next, who leaves, and what may be unloaded: the decisions of a fleet, without its sockets."""

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_rl.errors import EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.training.vllm_fleet.server import VllmServer

# So many completions more than the least loaded server has are worth a prompt that need not be computed again.
WORTH_A_PREFIX = 8


@dataclass(frozen=True, slots=True)
class Standing:
    """How a server stands: `version` is None while it is out of the rotation, and `trouble` says why."""

    address: str
    version: int | None
    running: int
    trouble: str


def newest_version(servers: Sequence[VllmServer]) -> int | None:
    return max((server.version for server in servers if server.version is not None), default=None)


def chosen(servers: Sequence[VllmServer], version: int, holder: VllmServer | None) -> VllmServer:
    """The least loaded of those with that version, or the holder of the prompt if it has little more to do."""
    ready = [server for server in servers if server.version == version]
    least = min(ready, key=lambda server: server.load)
    return holder if holder in ready and holder.load <= least.load + WORTH_A_PREFIX else least


def servers_fault(error: EndpointError) -> bool:
    """Whether the server, and not the request, is to blame. One that was restarted knows no adapter: 404."""
    if isinstance(error, RetryableEndpointError):
        return error.cause != "http_429"
    return error.cause in {"http_404", "timeout"}


def surplus(server: VllmServer) -> list[int]:
    """Versions that the server holds and nothing asks for or runs on."""
    return [version for version in server.loaded if version != server.version and not server.running[version]]


def standing(server: VllmServer) -> Standing:
    trouble = "" if server.version is not None else server.trouble or "it was not asked yet"
    return Standing(server.address, server.version, server.load, trouble)

"""A docker or podman: where it listens, a client for as long as anybody needs one, and what it can do.

Always true: a container is removed only if it carries our label with its own name, so nobody else's can be.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiodocker import Docker, DockerError

from hermes_rl.errors import ConfigError, SandboxError

OWNER_LABEL = "hermes-rl.owner"
SANDBOX_LABEL = "hermes-rl.sandbox"

_UNREACHABLE = 900
_CONNECT_TIME = 10.0
_REMOVE_TIME = 30.0
_ENDING_TIME = 5.0
_KILL_TIME = 10.0
# What the engine says it can hold, and the limit of ours that needs it.
_HOLDS = {"MemoryLimit": "memory_mb", "CpuCfsQuota": "cpus", "PidsLimit": "processes"}


@dataclass(frozen=True, slots=True)
class Abilities:
    """What an engine says of itself."""

    limits: frozenset[str]
    network: bool
    runtimes: frozenset[str]
    default_runtime: str


class Engine:
    """One engine. All requests share one client, which is open while it is held."""

    def __init__(self, name: str, url: str, *, answer_time: float) -> None:
        self.name = name
        self.url = url
        self._answer_time = answer_time
        self._docker: Docker | None = None
        self._holders = 0
        self._abilities: Abilities | None = None

    def hold(self) -> Docker:
        """A client, until `release`."""
        if self._docker is None:
            self._docker = _client(self.url)
        self._holders += 1
        return self._docker

    async def release(self) -> None:
        self._holders -= 1
        if self._holders == 0 and self._docker is not None:
            docker, self._docker = self._docker, None
            await docker.close()
            await docker.connector.close()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Docker]:
        docker = self.hold()
        try:
            yield docker
        finally:
            await self.release()

    async def abilities(self) -> Abilities:
        """Asked once. SandboxError when nobody answers."""
        if self._abilities is None:
            async with self.client() as docker:
                with self.explained("ask what it can do"):
                    async with asyncio.timeout(self._answer_time):
                        info = await docker.system.info()
                        networks = await docker.networks.list()
            self._abilities = Abilities(
                limits=frozenset(limit for told, limit in _HOLDS.items() if info.get(told)),
                network=any(network["Name"] in {"bridge", "podman"} for network in networks),
                runtimes=frozenset(info.get("Runtimes") or ()),
                default_runtime=info.get("DefaultRuntime") or "runc",
            )
        return self._abilities

    @contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Whatever the engine answers instead of doing it becomes a SandboxError with the next step."""
        try:
            yield
        except DockerError as error:
            if error.status == _UNREACHABLE:
                raise self._unreachable(error.__context__ or error) from error
            raise SandboxError("start", f"{self.name} could not {doing}: {error.message.strip()}") from error
        except TimeoutError as error:
            raise SandboxError("start_timeout", f"{self.name} at {self.url} took too long to {doing}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    async def find_image(self, name: str) -> Mapping[str, Any] | None:
        """What the engine knows of an image that it has."""
        async with self.client() as docker:
            with self.explained(f"look for the image {name}"):
                async with asyncio.timeout(self._answer_time):
                    try:
                        return await docker.images.inspect(name)
                    except DockerError as error:
                        if error.status == 404:
                            return None
                        raise

    async def remove(self, name: str, *, ending: bool = False) -> None:
        """Remove our container of that name and wait until it is gone; harmless when it is.

        One that is `ending` by itself is given the time for it: gVisor can hang when it is killed meanwhile.
        """
        loop = asyncio.get_running_loop()
        by_force = loop.time() + (_ENDING_TIME if ending else 0)
        pause = 0.02
        async with self.client() as docker:
            with self.explained(f"remove the container {name}"):
                async with asyncio.timeout(_REMOVE_TIME):
                    while not await _removed(docker, name, force=loop.time() >= by_force):
                        await asyncio.sleep(pause)
                        pause = min(pause * 1.5, 0.25)

    def _unreachable(self, error: BaseException) -> SandboxError:
        return SandboxError(
            "start",
            f"cannot reach {self.name} at {self.url}: {error}. Is it running, and may this user open its socket? "
            f"{'CONTAINER_HOST' if self.name == 'podman' else 'DOCKER_HOST'} or the setting `url` of the sandbox "
            f"backend {self.name} says where it is.",
        )


def docker_url() -> str:
    """Where docker listens, as its own command line finds it."""
    running = os.environ.get("XDG_RUNTIME_DIR", "/run/user/0")
    sockets = ("/run/docker.sock", "/var/run/docker.sock", "~/.docker/run/docker.sock", f"{running}/docker.sock")
    return os.environ.get("DOCKER_HOST") or _first(sockets)


def podman_url() -> str:
    """Where podman's service listens: the user's own, or the system's for root."""
    running = os.environ.get("XDG_RUNTIME_DIR", "/run/user/0")
    return os.environ.get("CONTAINER_HOST") or _first(("/run/podman/podman.sock", f"{running}/podman/podman.sock"))


def _first(sockets: Sequence[str]) -> str:
    paths = [Path(path).expanduser() for path in sockets]
    # A socket that this user may not open is passed over for one that they may.
    return f"unix://{next((path for path in paths if os.access(path, os.R_OK | os.W_OK)), paths[0])}"


def _client(url: str) -> Docker:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIME)
    scheme, _, place = url.partition("://")
    # No limit: every sandbox holds one connection for as long as it lives.
    if scheme == "unix":
        return Docker("http://localhost", connector=aiohttp.UnixConnector(place, limit=0), timeout=timeout)
    if scheme not in {"tcp", "http", "https"}:
        raise ConfigError(
            f"cannot talk to an engine at {url!r}: give unix:///path, tcp://host:port or https://host:port"
        )
    certificates = os.environ.get("DOCKER_CERT_PATH")
    secure = scheme == "https" or bool(os.environ.get("DOCKER_TLS_VERIFY"))
    connector = aiohttp.TCPConnector(limit=0, ssl=_tls(certificates) if secure and certificates else secure or False)
    return Docker(f"{'https' if secure else 'http'}://{place}", connector=connector, timeout=timeout)


def _tls(directory: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(Path(directory, "ca.pem")))
    context.load_cert_chain(str(Path(directory, "cert.pem")), str(Path(directory, "key.pem")))
    return context


async def _removed(docker: Docker, name: str, *, force: bool) -> bool:
    """Whether it is gone; False while the engine is still at it."""
    try:
        container = await docker.containers.get(name)
        if (container["Config"]["Labels"] or {}).get(SANDBOX_LABEL) != name:
            return True
        if not force:
            return False
        async with asyncio.timeout(_KILL_TIME):
            await container.delete(force=True, v=True)
    except TimeoutError:
        return False
    except DockerError as error:
        # podman answers 500 for one that vanishes while it looks; 409 and its other 500s are removals under way.
        if error.status == 404 or "no such container" in error.message.lower():
            return True
        if error.status in {409, 500}:
            return False
        raise
    return True

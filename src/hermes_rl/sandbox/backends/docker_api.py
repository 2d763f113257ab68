"""Access to a docker or podman engine: its address, a shared client, and its capabilities.

Always true: a container is removed only if our label on it carries its own name, so other containers are never removed.
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

from hermes_rl.core.errors import ConfigError, SandboxError

OWNER_LABEL = "hermes-rl.owner"
SANDBOX_LABEL = "hermes-rl.sandbox"

_UNREACHABLE = 900
_CONNECT_TIME = 10.0
_REMOVE_TIME = 30.0
_EXIT_GRACE = 5.0
_KILL_TIME = 10.0
# Flag in the engine's info -> limit that needs it.
_LIMIT_FLAGS = {"MemoryLimit": "memory_mb", "CpuCfsQuota": "cpus", "PidsLimit": "processes"}


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine reports about itself."""

    limits: frozenset[str]
    network: bool
    runtimes: frozenset[str]
    default_runtime: str


class DockerEngine:
    """One engine. All requests share one client, which is open while anyone holds it."""

    def __init__(self, name: str, url: str, *, request_timeout: float) -> None:
        self.name = name
        self.url = url
        self._request_timeout = request_timeout
        self._docker: Docker | None = None
        self._holders = 0
        self._info: EngineInfo | None = None

    def hold(self) -> Docker:
        """The shared client, open until `release`."""
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

    async def describe(self) -> EngineInfo:
        """Queried once. SandboxError if the engine does not answer."""
        if self._info is None:
            async with self.client() as docker:
                with self.translate_errors("report its capabilities"):
                    async with asyncio.timeout(self._request_timeout):
                        info = await docker.system.info()
                        networks = await docker.networks.list()
            self._info = EngineInfo(
                limits=frozenset(limit for flag, limit in _LIMIT_FLAGS.items() if info.get(flag)),
                network=any(network["Name"] in {"bridge", "podman"} for network in networks),
                runtimes=frozenset(info.get("Runtimes") or ()),
                default_runtime=info.get("DefaultRuntime") or "runc",
            )
        return self._info

    @contextmanager
    def translate_errors(self, action: str) -> Iterator[None]:
        """Turn errors of the engine and of the connection into a SandboxError with the next step."""
        try:
            yield
        except DockerError as error:
            if error.status == _UNREACHABLE:
                raise self._unreachable(error.__context__ or error) from error
            raise SandboxError("start", f"{self.name} could not {action}: {error.message.strip()}") from error
        except TimeoutError as error:
            raise SandboxError("start_timeout", f"{self.name} at {self.url} took too long to {action}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    async def find_image(self, name: str) -> Mapping[str, Any] | None:
        """The engine's data about an image; None if it does not have it."""
        async with self.client() as docker:
            with self.translate_errors(f"look for the image {name}"):
                async with asyncio.timeout(self._request_timeout):
                    try:
                        return await docker.images.inspect(name)
                    except DockerError as error:
                        if error.status == 404:
                            return None
                        raise

    async def remove(self, name: str, *, ending: bool = False) -> None:
        """Remove our container of that name and wait until it is gone. Harmless if it already is.

        A container that is `ending` by itself gets time to exit: gVisor can hang when it is killed meanwhile.
        """
        loop = asyncio.get_running_loop()
        force_after = loop.time() + (_EXIT_GRACE if ending else 0)
        pause = 0.02
        async with self.client() as docker:
            with self.translate_errors(f"remove the container {name}"):
                async with asyncio.timeout(_REMOVE_TIME):
                    while not await _try_remove(docker, name, force=loop.time() >= force_after):
                        await asyncio.sleep(pause)
                        pause = min(pause * 1.5, 0.25)

    def _unreachable(self, error: BaseException) -> SandboxError:
        variable = "CONTAINER_HOST" if self.name == "podman" else "DOCKER_HOST"
        return SandboxError(
            "start",
            f"cannot reach {self.name} at {self.url}: {error}. Is it running, and may this user open its socket? "
            f"Set its address with {variable} or the setting `url` of the sandbox backend {self.name}.",
        )


def docker_url() -> str:
    """The address of docker, found as its own CLI does."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "/run/user/0")
    sockets = ("/run/docker.sock", "/var/run/docker.sock", "~/.docker/run/docker.sock", f"{runtime}/docker.sock")
    return os.environ.get("DOCKER_HOST") or _first_usable(sockets)


def podman_url() -> str:
    """The address of podman's service: the user's own, or the system's for root."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "/run/user/0")
    return os.environ.get("CONTAINER_HOST") or _first_usable(
        ("/run/podman/podman.sock", f"{runtime}/podman/podman.sock")
    )


def _first_usable(sockets: Sequence[str]) -> str:
    paths = [Path(path).expanduser() for path in sockets]
    # Prefer a socket that this user may open.
    return f"unix://{next((path for path in paths if os.access(path, os.R_OK | os.W_OK)), paths[0])}"


def _client(url: str) -> Docker:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIME)
    scheme, _, address = url.partition("://")
    # No connection limit: every sandbox holds one for its lifetime.
    if scheme == "unix":
        return Docker("http://localhost", connector=aiohttp.UnixConnector(address, limit=0), timeout=timeout)
    if scheme not in {"tcp", "http", "https"}:
        raise ConfigError(
            f"cannot connect to an engine at {url!r}: use unix:///path, tcp://host:port or https://host:port"
        )
    certificates = os.environ.get("DOCKER_CERT_PATH")
    secure = scheme == "https" or bool(os.environ.get("DOCKER_TLS_VERIFY"))
    connector = aiohttp.TCPConnector(limit=0, ssl=_tls(certificates) if secure and certificates else secure or False)
    return Docker(f"{'https' if secure else 'http'}://{address}", connector=connector, timeout=timeout)


def _tls(directory: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(Path(directory, "ca.pem")))
    context.load_cert_chain(str(Path(directory, "cert.pem")), str(Path(directory, "key.pem")))
    return context


async def _try_remove(docker: Docker, name: str, *, force: bool) -> bool:
    """Whether it is gone; False while the removal is in progress."""
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
        # podman answers 500 for a container that vanishes meanwhile; 409 and other 500s are removals in progress.
        if error.status == 404 or "no such container" in error.message.lower():
            return True
        if error.status in {409, 500}:
            return False
        raise
    return True

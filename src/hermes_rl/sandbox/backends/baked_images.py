"""The images in which docker and podman keep a spec's baked setup.

Always true: only images with our own name, on this machine, are listed, and none that a container uses is removed.
"""

import asyncio
import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes_rl.sandbox.backends.docker_api import DockerEngine

REQUEST_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class BakedImage:
    """`bytes` excludes the base image's layers; `container` is the name of one that uses it."""

    name: str
    bytes: int
    made_at: float
    container: str | None


def local_engines() -> list[str]:
    """The engines with an accessible socket on this machine; none without the extra `docker`."""
    if find_spec("aiodocker") is None:
        return []
    from hermes_rl.sandbox.backends.docker_api import docker_url, podman_url

    urls = {"docker": docker_url(), "podman": podman_url()}
    return [name for name, url in urls.items() if os.access(url.removeprefix("unix://"), os.R_OK | os.W_OK)]


async def baked_images(engine: str) -> list[BakedImage]:
    from hermes_rl.sandbox.backends.docker import BAKED

    # podman prefixes a registry.
    ours = {f"{registry}{BAKED}" for registry in ("", "docker.io/", "localhost/")}
    server, containers, baked = _engine(engine), {}, []
    async with server.client() as docker:
        with server.translate_errors("list its images"):
            async with asyncio.timeout(REQUEST_TIMEOUT):
                for each in await docker.containers.list(all=True):
                    containers[each["ImageID"].removeprefix("sha256:")] = " ".join(each["Names"] or ()).lstrip("/")
                for image in await docker.images.list(filters={"reference": [BAKED]}):
                    # The newest layer is the one added by baking.
                    layers: Any = await docker.images.history(image["Id"])
                    size, made_at = layers[0]["Size"], float(image["Created"])
                    container = containers.get(image["Id"].removeprefix("sha256:"))
                    names = [name for name in image["RepoTags"] or () if name.rpartition(":")[0] in ours]
                    baked += [BakedImage(name, size, made_at, container) for name in names]
    return baked


async def remove_baked_image(engine: str, name: str) -> None:
    """SandboxError if it cannot be removed, for example because a container uses it."""
    server = _engine(engine)
    async with server.client() as docker:
        with server.translate_errors(f"remove the image {name}"):
            async with asyncio.timeout(REQUEST_TIMEOUT):
                # noprune: its parent images are not ours to remove.
                await docker.images.delete(name, noprune=True)


def _engine(name: str) -> "DockerEngine":
    from hermes_rl.sandbox.backends.docker_api import DockerEngine, docker_url, podman_url

    return DockerEngine(name, docker_url() if name == "docker" else podman_url(), request_timeout=REQUEST_TIMEOUT)

"""The images that docker and podman keep because a spec's setup was baked.

Always true: only images with our own name are seen, on this machine only, and none that a container uses is removed.
"""

import asyncio
import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes_rl.sandbox.engine import Engine

ANSWER_TIME = 20.0


@dataclass(frozen=True, slots=True)
class BakedImage:
    """`bytes` leaves out the layers of its base; `container` is one that uses it."""

    name: str
    bytes: int
    made_at: float
    container: str | None


def local_engines() -> list[str]:
    """The engines that may be asked: those with a socket on this machine, if the extra `docker` is installed."""
    if find_spec("aiodocker") is None:
        return []
    from hermes_rl.sandbox.engine import docker_url, podman_url

    urls = {"docker": docker_url(), "podman": podman_url()}
    return [name for name, url in urls.items() if os.access(url.removeprefix("unix://"), os.R_OK | os.W_OK)]


async def baked_images(engine: str) -> list[BakedImage]:
    from hermes_rl.sandbox.docker import BAKED

    # podman names a registry too.
    ours = {f"{registry}{BAKED}" for registry in ("", "docker.io/", "localhost/")}
    asked, used, found = _engine(engine), {}, []
    async with asked.client() as docker:
        with asked.explained("list its images"):
            async with asyncio.timeout(ANSWER_TIME):
                for one in await docker.containers.list(all=True):
                    used[one["ImageID"].removeprefix("sha256:")] = " ".join(one["Names"] or ()).lstrip("/")
                for image in await docker.images.list(filters={"reference": [BAKED]}):
                    # The newest layer is the one that baking added.
                    layers: Any = await docker.images.history(image["Id"])
                    size, made = layers[0]["Size"], float(image["Created"])
                    container = used.get(image["Id"].removeprefix("sha256:"))
                    names = [name for name in image["RepoTags"] or () if name.rpartition(":")[0] in ours]
                    found += [BakedImage(name, size, made, container) for name in names]
    return found


async def remove_baked_image(engine: str, name: str) -> None:
    """SandboxError when it stays, as when a container has just been made of it."""
    asked = _engine(engine)
    async with asked.client() as docker:
        with asked.explained(f"remove the image {name}"):
            async with asyncio.timeout(ANSWER_TIME):
                # Its parents are not ours to remove.
                await docker.images.delete(name, noprune=True)


def _engine(name: str) -> "Engine":
    from hermes_rl.sandbox.engine import Engine, docker_url, podman_url

    return Engine(name, docker_url() if name == "docker" else podman_url(), answer_time=ANSWER_TIME)

"""The images that a real docker or podman keeps for us: found, measured, kept while in use, removed."""

from pathlib import Path

import pytest

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.backends.baked_images import baked_images, local_engines, remove_baked_image
from hermes_rl.sandbox.backends.docker import DockerBackend, PodmanBackend
from hermes_rl.sandbox.spec import SandboxSpec
from tests.support.sandbox_parts import IMAGE, ContainerServer

SPEC = SandboxSpec(image=IMAGE, setup="head -c 3000000 /dev/urandom > /opt/large")
VARIABLES = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    name: str = request.param
    server: ContainerServer = request.getfixturevalue("docker_daemon" if name == "docker" else "podman_service")
    for other, variable in VARIABLES.items():
        monkeypatch.setenv(variable, server.url if other == name else f"unix://{tmp_path}/no.sock")
    return name


async def test_a_baked_image_is_kept_while_a_container_uses_it(engine: str) -> None:
    assert local_engines() == [engine]
    backend = (DockerBackend if engine == "docker" else PodmanBackend)()
    async with await backend.start(SPEC):
        [image] = await baked_images(engine)
        assert image.container
        with pytest.raises(SandboxError, match="could not remove the image"):
            await remove_baked_image(engine, image.name)
    await backend.close()
    [image] = await baked_images(engine)
    assert image.container is None
    await remove_baked_image(engine, image.name)
    assert await baked_images(engine) == []


async def test_the_layers_of_its_base_are_not_counted(engine: str) -> None:
    backend = (DockerBackend if engine == "docker" else PodmanBackend)()
    await backend.prepare(SPEC, lambda _: None)
    await backend.close()
    [image] = await baked_images(engine)
    await remove_baked_image(engine, image.name)
    assert 3_000_000 <= image.bytes < 4_000_000

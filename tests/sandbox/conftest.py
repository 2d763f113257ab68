from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.protocol import Backend, Sandbox
from tests.support.product_loop import Factories, product_loop
from tests.support.sandbox_parts import DockerDaemon, Parts, PodmanService, SshServer, find_parts

if TYPE_CHECKING:
    from tests.support.daytona_cloud import DaytonaCloud
    from tests.support.modal_cloud import ModalCloud


def pytest_asyncio_loop_factories() -> Factories:
    """The loop that the product runs on; `test_both_event_loops_do` tries the other."""
    return {"uvloop": product_loop}


@pytest.fixture(params=["bubblewrap", "local"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    backend: Backend = BubblewrapBackend() if request.param == "bubblewrap" else LocalBackend()
    yield backend
    await backend.close()


@pytest.fixture
async def sandbox(backend: Backend) -> AsyncIterator[Sandbox]:
    async with await backend.start() as sandbox:
        yield sandbox


@pytest.fixture
async def bubblewrap() -> AsyncIterator[BubblewrapBackend]:
    backend = BubblewrapBackend()
    yield backend
    await backend.close()


@pytest.fixture
async def jail(bubblewrap: BubblewrapBackend) -> AsyncIterator[Sandbox]:
    async with await bubblewrap.start() as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def parts() -> Parts:
    return find_parts()


class PlainSshServer(SshServer):
    """sshd with the numbers of sessions and logins that it allows unless it is told otherwise."""

    def prepare(self) -> None:
        super().prepare()
        settings = self.directory / "sshd_config"
        lines = settings.read_text().splitlines(keepends=True)
        ours = ("MaxSessions", "MaxStartups")
        settings.write_text("".join(line for line in lines if not line.lstrip().startswith(ours)))


@pytest.fixture(scope="session")
def ssh_server() -> Iterator[SshServer]:
    with PlainSshServer() as server:
        yield server


@pytest.fixture(scope="session")
def runsc(parts: Parts) -> Path:
    if parts.runsc is None:
        pytest.skip("NO RUNSC: scripts/sandbox_parts could not get it today and says why")
    return parts.runsc


@pytest.fixture(scope="session")
def apptainer(parts: Parts) -> Path:
    if parts.apptainer is None:
        pytest.skip("NO APPTAINER: scripts/sandbox_parts could not make it today and says why")
    return parts.apptainer


@pytest.fixture
async def daytona_cloud(monkeypatch: pytest.MonkeyPatch) -> "AsyncIterator[DaytonaCloud]":
    """Daytona's contract server, which its SDK finds; imported here because that SDK is heavy."""
    from tests.support.daytona_cloud import DaytonaCloud

    async with DaytonaCloud() as cloud:
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        yield cloud


@pytest.fixture
async def modal_cloud(monkeypatch: pytest.MonkeyPatch) -> "AsyncIterator[ModalCloud]":
    """Modal's contract server, which its SDK finds; imported here because that SDK is heavy."""
    from tests.support.modal_cloud import ModalCloud

    async with ModalCloud() as cloud:
        for name, value in cloud.environment.items():
            monkeypatch.setenv(name, value)
        yield cloud


@pytest.fixture(scope="session")
def docker_daemon(parts: Parts) -> Iterator[DockerDaemon]:
    with DockerDaemon(parts.image, parts.runsc) as daemon:
        yield daemon


class SecludedPodman(PodmanService):
    """podman with a network namespace of its own, so that the bridge it makes is not the machine's."""

    def prepare(self) -> None:
        super().prepare()
        self.run("mkdir", "-p", "/var/lib/cni")
        self.run("mount", "-t", "tmpfs", "cni", "/var/lib/cni")

    def command(self) -> list[str | Path]:
        return ["unshare", "--net", *super().command()]


@pytest.fixture(scope="session")
def podman_service(parts: Parts) -> Iterator[PodmanService]:
    with SecludedPodman(parts.image) as service:
        yield service

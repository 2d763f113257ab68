"""The conformance suite on every backend that needs a real part; the SDKs of clouds meet contract servers.

gVisor and Apptainer come from packages that are not available every day: without them their tests are skipped, which
scripts/check counts.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.sandbox.backends.registry import make_backend
from hermes_rl.sandbox.conformance.suite import CheckOutcome, check_backend
from hermes_rl.sandbox.protocol import Backend
from tests.sandbox.conftest import (  # noqa: F401 - fixtures
    apptainer,
    daytona_cloud,
    docker_daemon,
    modal_cloud,
    parts,
    podman_service,
    runsc,
    ssh_server,
)
from tests.support.sandbox_parts import IMAGE, DockerDaemon, Parts, PodmanService, SshServer

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]

# Starting a process is twenty times dearer under gVisor.
GVISOR_PATIENCE = 4.0


@pytest.fixture(autouse=True)
def open_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home for ledgers and images that the users of sandboxes can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        monkeypatch.setenv("HERMES_HOME", directory)
        yield


class Conformance:
    """Runs the suite and tells, past pytest's capturing, what came of it."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def tell(self, line: str) -> None:
        with self._capsys.disabled():
            sys.stdout.write(f"\n{line}\n")

    async def run(self, backend: Backend, what: str, **options: Any) -> None:
        try:
            report = await check_backend(backend, **options)
        finally:
            await backend.close()
        passed, not_claimed = report.count(CheckOutcome.PASSED), report.count(CheckOutcome.NOT_CLAIMED)
        seconds = sum(row.seconds for row in report.rows)
        self.tell(
            f"{what}: {passed} checks passed, {not_claimed} not claimed, {len(report.failures)} failed, {seconds:.0f} s"
        )
        if report.failures:
            pytest.fail("\n".join(f"{row.name}: {row.message}" for row in report.failures), pytrace=False)


@pytest.fixture
def conformance(capsys: pytest.CaptureFixture[str]) -> Conformance:
    return Conformance(capsys)


async def test_bubblewrap_keeps_its_promises_with_an_image(conformance: Conformance, parts: Parts) -> None:  # noqa: F811
    await conformance.run(make_backend("bubblewrap"), "bubblewrap with an image", image=str(parts.root))


async def test_docker_keeps_its_promises(conformance: Conformance, docker_daemon: DockerDaemon) -> None:  # noqa: F811
    settings = {"url": docker_daemon.url, "image": IMAGE}
    await conformance.run(make_backend("docker", settings), "docker", image=IMAGE)


@pytest.mark.usefixtures("runsc")
async def test_docker_with_gvisor_keeps_its_promises(
    conformance: Conformance,
    docker_daemon: DockerDaemon,  # noqa: F811
) -> None:
    settings = {"url": docker_daemon.url, "image": IMAGE, "runtime": "runsc"}
    backend = make_backend("docker", settings)
    await conformance.run(backend, "docker with gVisor", image=IMAGE, patience=GVISOR_PATIENCE)


async def test_podman_keeps_its_promises(conformance: Conformance, podman_service: PodmanService) -> None:  # noqa: F811
    settings = {"url": podman_service.url, "image": IMAGE}
    await conformance.run(make_backend("podman", settings), "podman", image=IMAGE)


async def test_ssh_keeps_its_promises(conformance: Conformance, ssh_server: SshServer) -> None:  # noqa: F811
    settings = {
        "host": ssh_server.host,
        "port": ssh_server.port,
        "username": ssh_server.username,
        "key": str(ssh_server.key),
        "known_hosts": str(ssh_server.known_hosts),
        "directory": str(ssh_server.home),
    }
    await conformance.run(make_backend("ssh", settings), "ssh")


async def test_singularity_keeps_its_promises(
    conformance: Conformance,
    parts: Parts,  # noqa: F811
    apptainer: Path,  # noqa: F811
) -> None:
    settings = {"image": str(parts.root), "binary": str(apptainer)}
    await conformance.run(make_backend("singularity", settings), "singularity", image=str(parts.root))


@pytest.mark.usefixtures("modal_cloud")
async def test_modal_keeps_its_promises_against_a_contract_server(conformance: Conformance) -> None:
    await conformance.run(make_backend("modal"), "modal, contract server")


@pytest.mark.usefixtures("daytona_cloud")
async def test_daytona_keeps_its_promises_against_a_contract_server(conformance: Conformance) -> None:
    await conformance.run(make_backend("daytona"), "daytona, contract server")

from collections.abc import Iterator

import pytest

from tests.redteam.arena import Arena
from tests.redteam.setups import SETUPS, SetUp
from tests.redteam.world import World
from tests.sandbox.conftest import apptainer, docker_daemon, parts, podman_service
from tests.support.sandbox_parts import ContainerServer, Parts

__all__ = ["apptainer", "docker_daemon", "parts", "podman_service"]


@pytest.fixture(scope="module")
def world(parts: Parts) -> Iterator[World]:
    """The host for attacks that no sandbox holds."""
    with World(0, parts.root) as world:
        yield world


@pytest.fixture(scope="module", params=SETUPS)
def arena(request: pytest.FixtureRequest, parts: Parts) -> Iterator[Arena]:
    """An owner of sandboxes of one kind; when it has played, nothing of them may be left."""
    setup: SetUp = request.param
    server: ContainerServer | None = request.getfixturevalue(setup.server) if setup.server else None
    before = set(server.containers()) if server else set()
    with World(setup.owner, parts.root) as world, Arena(setup.plan(world, parts, server), world) as arena:
        yield arena
        assert arena.left() == {"ledger": [], "processes": [], "files": []}
        assert not server or set(server.containers()) <= before

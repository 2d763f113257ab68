"""The isolating backends that attacks are played on, by who owns the sandboxes and who the policy is in them."""

from dataclasses import dataclass
from typing import Any

import pytest

from hermes_rl.sandbox.spec import AGENT, ROOT
from tests.redteam.arena import Plan
from tests.redteam.undefended import ORDINARY
from tests.redteam.world import World
from tests.support.sandbox_parts import IMAGE, ContainerServer, Parts


@dataclass(frozen=True, slots=True)
class SetUp:
    """`server` is the fixture of the engine that a backend needs."""

    backend: str
    user: str = AGENT
    owner: int = 0
    server: str | None = None
    runtime: str | None = None

    @property
    def name(self) -> str:
        who = "" if self.owner == 0 else ", owned by an ordinary user"
        return f"{self.runtime or self.backend}, policy as {self.user}{who}"

    def plan(self, world: World, parts: Parts, server: ContainerServer | None) -> Plan:
        settings: dict[str, Any] = {}
        image = str(parts.root)
        if server is not None:
            image = IMAGE
            settings = {"url": server.url, "image": IMAGE}
        if self.runtime is not None:
            if parts.runsc is None:
                pytest.skip("NO RUNSC: scripts/sandbox_parts could not make it today and says why")
            settings["runtime"] = self.runtime
        if self.backend == "singularity":
            if parts.apptainer is None:
                pytest.skip("NO APPTAINER: scripts/sandbox_parts could not make it today and says why")
            settings = {"image": str(parts.root), "binary": str(parts.apptainer)}
        return Plan(
            backend=self.backend,
            settings=settings,
            user=self.user,
            uid=self.owner,
            image=image,
            variables=world.variables(),
            secret=world.secret,
            mark=world.mark,
            open_file=str(world.home / "notes.txt"),
            downloads=str(world.downloads),
        )


def _param(setup: SetUp, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param(setup, id=setup.name, marks=marks)


BUBBLEWRAP = SetUp("bubblewrap")
# Who dies of what, and is then counted as dead: backend, user, attack.
DEADLY = {("podman", ROOT, "killer of the kernel")}
# What an attack gains there that is worth nothing, and why.
WORTHLESS = {("runsc", "namespace of its own"): "of gVisor's kernel, not of the host's"}
SETUPS = [
    _param(BUBBLEWRAP),
    _param(SetUp("bubblewrap", owner=ORDINARY), pytest.mark.long),
    _param(SetUp("docker", server="docker_daemon"), pytest.mark.long),
    _param(SetUp("docker", ROOT, server="docker_daemon"), pytest.mark.long),
    _param(SetUp("podman", server="podman_service"), pytest.mark.long),
    _param(SetUp("podman", ROOT, server="podman_service"), pytest.mark.long),
    _param(SetUp("docker", server="docker_daemon", runtime="runsc"), pytest.mark.long),
    _param(SetUp("singularity"), pytest.mark.long),
    _param(SetUp("singularity", owner=ORDINARY), pytest.mark.long),
]

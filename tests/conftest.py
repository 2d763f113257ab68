"""What every test lives in: a home of its own, so that nothing is left in the tester's, and what is left is removed.

Tests that need a server of another project (dockerd, sshd, a cloud's SDK) are marked `parts` by the fixtures they use.
"""

import asyncio
import os
from collections.abc import Iterator

import hypothesis
import pytest

from hermes_rl.sandbox import cgroups
from hermes_rl.sandbox.reaper import reap

# Environments that ask a hub for their dataset first: its library would try for 20 seconds where there is none.
os.environ["HF_HUB_OFFLINE"] = "1"

# The same examples in every CI run, so that it tells of the change it is run for; elsewhere new ones each time.
# A busy machine is slow to make its first example, which says nothing of what is tested. `brief` is for another Python,
# where what holds is known, and only whether it runs is asked.
for name, examples in (("ci", 100), ("brief", 20)):
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        derandomize=True,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")

PARTS = {
    "parts",
    "docker_daemon",
    "podman_service",
    "ssh_server",
    "apptainer",
    "cloud",
    "daytona_cloud",
    "modal_cloud",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if PARTS & set(getattr(item, "fixturenames", ())):
            item.add_marker("parts")
    if not any(place.version == 2 for place in cgroups.available().places.values()):
        elsewhere = [item for item in items if item.get_closest_marker("cgroup2")]
        items[:] = [item for item in items if item not in elsewhere]
        config.hook.pytest_deselected(items=elsewhere)


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests kill owners of sandboxes on purpose; their ledgers are here, and are settled at the end."""
    before = os.environ.get("HERMES_HOME")
    os.environ["HERMES_HOME"] = str(tmp_path_factory.mktemp("hermes-home"))
    yield
    asyncio.run(reap())
    if before is None:
        del os.environ["HERMES_HOME"]
    else:
        os.environ["HERMES_HOME"] = before

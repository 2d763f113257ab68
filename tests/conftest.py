"""What every test lives in: a home of its own, so that nothing is left in the tester's, and what is left is removed.

Tests that need a server of another project (dockerd, sshd, a cloud's SDK) are marked `parts` by the fixtures they use.
"""

import asyncio
import os
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import strategies

from hermes_rl.sandbox import cgroups
from hermes_rl.sandbox.reaper import reap
from tests.support.long_suites import check_long_tests

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
# Hypothesis' own limit is 200 ms for each example, which a busy machine exceeds.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

PARTS = {
    "parts",
    "docker_daemon",
    "podman_service",
    "ssh_server",
    "runsc",
    "apptainer",
    "cloud",
    "daytona_cloud",
    "modal_cloud",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if PARTS & set(getattr(item, "fixturenames", ())):
            item.add_marker("parts")
    check_long_tests(items, config.rootpath)
    if not any(place.version == 2 for place in cgroups.available().parents.values()):
        elsewhere = [item for item in items if item.get_closest_marker("cgroup2")]
        items[:] = [item for item in items if item not in elsewhere]
        config.hook.pytest_deselected(items=elsewhere)


BEGUN = pytest.StashKey[os.times_result]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[BEGUN] = os.times()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Cores are what CI is short of, so reports say how much of them a test and the processes it waited for took."""
    result = yield
    taken = sum(os.times()[:4]) - sum(item.stash[BEGUN][:4])
    item.user_properties.append(("cpu", f"{taken:.2f}"))
    return result


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make Hypothesis' table of characters before the first example, if there will be one.

    It takes seconds where there is no `.hypothesis` yet, and the example that first draws a text would be reported as
    slow to generate.
    """
    if not session.config.option.collectonly and any(
        getattr(getattr(item, "obj", None), "is_hypothesis_test", False) for item in session.items
    ):
        strategies.text().validate()


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

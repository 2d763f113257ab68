from typing import TYPE_CHECKING

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.sandbox.backends.cloud import OWNER_LABEL, SANDBOX_LABEL
from hermes_rl.sandbox.backends.daytona import DaytonaBackend
from hermes_rl.sandbox.spec import Limits, SandboxSpec

if TYPE_CHECKING:
    from tests.support.daytona_cloud import DaytonaCloud


async def test_the_order_has_the_limits_the_labels_and_the_longest_life(daytona_cloud: "DaytonaCloud") -> None:
    backend = DaytonaBackend(cpus=2, disk_gb=5, hours=3, target="eu")
    async with await backend.start(SandboxSpec(image="python:3.11-slim", limits=Limits(memory_mb=1500))) as sandbox:
        (one,) = daytona_cloud.ordered
    await backend.close()
    assert {name: one.order[name] for name in ("cpu", "memory", "disk", "target")} == {
        "cpu": 2,
        "memory": 2,
        "disk": 5,
        "target": "eu",
    }
    assert one.order["buildInfo"]["dockerfileContent"] == "FROM python:3.11-slim\n"
    assert one.order["labels"][OWNER_LABEL] == backend.ledger.owner
    assert one.order["labels"][SANDBOX_LABEL] == one.order["name"] == sandbox.name
    assert (one.order["autoStopInterval"], one.order["autoDeleteInterval"], one.order["ttlMinutes"]) == (10, 0, 180)
    assert one.order["user"] == "root"


@pytest.mark.parametrize(("network", "blocked"), [(None, True), (False, True), (True, False)])
async def test_the_network_is_blocked_unless_asked_for(
    daytona_cloud: "DaytonaCloud", network: bool | None, blocked: bool
) -> None:
    backend = DaytonaBackend()
    async with await backend.start(SandboxSpec(network=network)):
        (one,) = daytona_cloud.ordered
    await backend.close()
    assert one.order["networkBlockAll"] is blocked


async def test_a_wrong_key_is_the_users_to_mend(daytona_cloud: "DaytonaCloud", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "wrong")
    backend = DaytonaBackend()
    with pytest.raises(ConfigError, match="set DAYTONA_API_KEY"):
        await backend.start()
    await backend.close()


async def test_a_missing_key_is_the_users_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DAYTONA_API_KEY", "DAYTONA_JWT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="set DAYTONA_API_KEY"):
        await DaytonaBackend().start()


async def test_the_ledger_has_where_and_no_key(daytona_cloud: "DaytonaCloud") -> None:
    backend = DaytonaBackend(api_url=daytona_cloud.url)
    async with await backend.start():
        written = backend.ledger.path.read_text()
    await backend.close()
    assert daytona_cloud.url in written
    assert daytona_cloud.environment["DAYTONA_API_KEY"] not in written

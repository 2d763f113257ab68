from typing import TYPE_CHECKING

import pytest
from modal_proto import api_pb2

from hermes_rl.core.errors import ConfigError
from hermes_rl.sandbox.backends.cloud import OWNER_LABEL, SANDBOX_LABEL
from hermes_rl.sandbox.backends.modal import ModalBackend
from hermes_rl.sandbox.spec import Limits, SandboxSpec

if TYPE_CHECKING:
    from tests.support.modal_cloud import ModalCloud

BLOCKED = api_pb2.NetworkAccess.NetworkAccessType.BLOCKED
OPEN = api_pb2.NetworkAccess.NetworkAccessType.OPEN


async def test_the_order_has_the_limits_the_tags_and_the_longest_life(modal_cloud: "ModalCloud") -> None:
    backend = ModalBackend(hours=3)
    async with await backend.start(SandboxSpec(limits=Limits(memory_mb=700, cpus=0.5))) as sandbox:
        (one,) = modal_cloud.ordered
    await backend.close()
    sizes = one.order.resources
    assert (sizes.memory_mb, sizes.memory_mb_max) == (700, 700)
    assert (sizes.milli_cpu, sizes.milli_cpu_max) == (500, 500)
    assert one.tags == {OWNER_LABEL: backend.ledger.owner, SANDBOX_LABEL: sandbox.name}
    assert one.order.name == sandbox.name
    assert (one.order.timeout_secs, one.order.idle_timeout_secs) == (3 * 3600, 120)


@pytest.mark.parametrize(("network", "access"), [(None, BLOCKED), (False, BLOCKED), (True, OPEN)])
async def test_the_network_is_blocked_unless_asked_for(
    modal_cloud: "ModalCloud", network: bool | None, access: int
) -> None:
    backend = ModalBackend()
    async with await backend.start(SandboxSpec(network=network)):
        (one,) = modal_cloud.ordered
    await backend.close()
    assert one.order.network_access.network_access_type == access


async def test_a_wrong_token_is_the_users_to_mend(modal_cloud: "ModalCloud", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "wrong")
    backend = ModalBackend()
    with pytest.raises(ConfigError, match="set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"):
        await backend.start()
    await backend.close()


async def test_a_missing_token_is_the_users_to_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"):
        await ModalBackend().start()


async def test_closing_one_backend_leaves_another_connected(modal_cloud: "ModalCloud") -> None:
    one, other = ModalBackend(), ModalBackend()
    await (await one.start()).close()
    async with await other.start() as sandbox:
        await one.close()
        assert (await sandbox.exec("echo well", timeout=20)).stdout == b"well\n"
    await other.close()


async def test_the_ledger_has_the_app_and_no_token(modal_cloud: "ModalCloud") -> None:
    backend = ModalBackend(app="mine")
    async with await backend.start():
        written = backend.ledger.path.read_text()
    await backend.close()
    assert '"app": "mine"' in written
    assert not any(secret in written for secret in (modal_cloud.environment["MODAL_TOKEN_SECRET"], "ak-of"))

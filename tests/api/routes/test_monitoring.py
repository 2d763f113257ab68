import asyncio
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hermes_rl.api.routes import monitoring
from hermes_rl.store.database.errors import StoreUnavailableError
from hermes_rl.store.database.store import Store, open_store
from tests.store.database.making import make_failed, make_group, make_rollout
from tests.store.database.postgres_server import PostgresServer
from tests.support.trajectory_api import Caller, calling


async def test_the_queue_is_told_by_environment(api: Caller) -> None:
    await api.train(4)
    for name in "ab":
        await api.post(await api.register(name), make_group(4))
    await api.lease()
    _, status = await api("GET", "/v1/status")
    assert status["total"] == {"waiting_groups": 1, "waiting": 4, "leased_groups": 1, "leased": 4}
    assert status["environments"]["1"]["leased"] == 4 and status["environments"]["2"]["waiting"] == 4


async def test_what_became_of_groups_is_told_by_cause(api: Caller) -> None:
    await api.post(await api.register(), make_group(4, withheld="equal_scores"))
    assert [one["cause"] for one in (await api("GET", "/v1/status"))[1]["outcomes"]] == ["withheld"]


async def test_one_whose_database_is_away_is_alive_and_not_ready(api: Caller, store: Store) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    store._engine.read = away  # type: ignore[method-assign, assignment]
    assert [(await api("GET", path))[0] for path in ("/health", "/ready")] == [200, 503]


async def test_one_whose_database_does_not_answer_says_so_soon(
    api: Caller, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "READY_SECONDS", 0.1)

    async def silent(*_: object) -> None:
        await asyncio.sleep(60)

    store._engine.read = silent  # type: ignore[method-assign, assignment]
    status, problem = await api("GET", "/ready")
    assert status == 503
    assert "did not answer within 0.1 s; check that it runs" in problem["message"]


@pytest.mark.parts
async def test_a_frozen_postgresql_is_not_ready_within_five_seconds_and_ready_again_when_it_goes_on(
    postgres: PostgresServer,
) -> None:
    async with open_store(postgres.new_schema()) as store, calling(store) as api:
        assert (await api("GET", "/ready"))[0] == 200
        with postgres.frozen():
            began = time.monotonic()
            assert (await api("GET", "/ready"))[0] == 503
            assert time.monotonic() - began < 6
            assert (await api("GET", "/health"))[0] == 200
        assert (await api("GET", "/ready"))[0] == 200


async def test_prometheus_reads_the_queue_and_the_requests(api: Caller) -> None:
    await api.post(await api.register('e"\n'), make_group(4))
    text = (await api("GET", "/metrics"))[1].decode()
    assert r'hermes_rl_queued_rollouts{environment="e\"\n",number="1",state="waiting"} 4' in text
    assert 'route="/v1/environments/{environment}/groups",status="201"} 1' in text


async def test_paths_that_nobody_serves_make_no_series_of_their_own(api: Caller) -> None:
    for number in range(3):
        await api("GET", f"/nothing/{number}")
    text = (await api("GET", "/metrics"))[1].decode()
    assert 'method="GET",route="none",status="404"} 3' in text


async def test_the_schema_names_every_route(api: Caller) -> None:
    _, schema = await api("GET", "/openapi.json")
    assert {"/v1/batches", "/v1/environments/{environment}/groups", "/v1/status"} <= set(schema["paths"])


async def test_prometheus_reads_what_came_in(api: Caller) -> None:
    number = await api.register("e")
    for _ in range(2):
        await api.post(number, make_group(id="same", rollouts=(make_rollout(0), make_rollout(1), make_failed(2))))
    text = (await api("GET", "/metrics"))[1].decode()
    assert 'hermes_rl_received_groups_total{environment="e",number="1"} 1' in text
    assert 'hermes_rl_rollout_score_count{environment="e",number="1"} 2' in text
    assert 'hermes_rl_failed_rollouts_total{environment="e",number="1",whose="sandbox",cause="start"} 1' in text


async def test_prometheus_reads_how_stale_the_queue_is(api: Caller) -> None:
    await api.post(await api.register("e"), make_group(4))
    before = (await api("GET", "/metrics"))[1].decode()
    await api("POST", "/v1/version", json={"version": 5, "by": "t"})
    after = (await api("GET", "/metrics"))[1].decode()
    assert 'hermes_rl_queued_staleness_rollouts{behind="0"} 4' in before
    assert 'hermes_rl_queued_staleness_rollouts{behind="5"} 4' in after


async def test_a_prometheus_client_reads_all_metrics(api: Caller) -> None:
    await api.post(await api.register('e"\n'), make_group(rollouts=(make_rollout(0), make_failed(1))))
    async with api.session.get("/metrics") as response:
        families = {family.name: family for family in text_string_to_metric_families(await response.text())}
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert {family.type for family in families.values()} == {"counter", "gauge", "histogram"}
    [received] = families["hermes_rl_received_groups"].samples
    assert (received.labels, received.value) == ({"environment": 'e"\n', "number": "1"}, 1)
    assert {"hermes_rl_queued_rollouts", "hermes_rl_rollout_seconds", "hermes_rl_requests"} <= families.keys()

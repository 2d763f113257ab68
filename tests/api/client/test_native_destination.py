import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from hermes_rl.api.client.connection import ApiConnection, ApiError, ApiUnavailableError
from hermes_rl.api.client.delivery import Delivery
from hermes_rl.api.client.destination import ResumeState, find_destination
from hermes_rl.api.client.native_destination import NativeDestination
from hermes_rl.api.client.spool import Spool
from hermes_rl.api.schemas import EnvironmentRegistration
from hermes_rl.api.server import ApiSettings
from hermes_rl.core.errors import ConfigError
from hermes_rl.store.codec import decode
from hermes_rl.store.database.registrations import TrainerRow
from tests.api.client.running_api import Line, RunningApi, running_api
from tests.store.database.making import make_group, make_rollout

REGISTRATION = EnvironmentRegistration(name="e", group_size=4)
PROGRAM = Path(__file__).parent / "delivering.py"
ROOT = Path(__file__).parents[3]
SOON = 20.0


@pytest.fixture
async def destination(connection: ApiConnection) -> NativeDestination:
    return NativeDestination(connection, REGISTRATION, patience=SOON)


async def posted_draws(api: RunningApi) -> list[int]:
    """In the order in which the API took them."""
    places = {listed.place for listed in (await api.store.rollouts(limit=10_000)).rollouts}
    groups = [await api.store.group(place) for place in sorted(places)]
    return [decode(group.data).draw for group in groups if group is not None and group.data is not None]


async def test_our_api_is_found(connection: ApiConnection) -> None:
    found = await find_destination(connection, REGISTRATION)
    assert isinstance(found, NativeDestination)


async def test_our_api_is_found_behind_another_token_and_says_so(tmp_path: Path) -> None:
    async with (
        running_api(tmp_path / "store.db", ApiSettings(token="right")) as api,
        ApiConnection(api.url, token="wrong-one") as connection,
    ):
        found = await find_destination(connection, REGISTRATION)
        with pytest.raises(ApiError, match="Authorization: Bearer TOKEN") as caught:
            await found.register()
    assert (caught.value.status, caught.value.kind) == (401, "unauthorised")


async def test_the_right_token_opens_the_door(tmp_path: Path) -> None:
    async with (
        running_api(tmp_path / "store.db", ApiSettings(token="right")) as api,
        ApiConnection(api.url, token="right") as connection,
    ):
        assert await (await find_destination(connection, REGISTRATION)).register() == ResumeState()


async def test_an_environment_that_comes_back_learns_where_it_stood(
    connection: ApiConnection, destination: NativeDestination
) -> None:
    await destination.register()
    await destination.work(running=4, wanted=0, cursor=2)
    for draw in (0, 1, 3):
        await destination.post(make_group(draw=draw))
    again = NativeDestination(connection, REGISTRATION)
    assert await again.register() == ResumeState(2, frozenset({3}))


async def test_work_is_granted_within_the_capacity(api: RunningApi, destination: NativeDestination) -> None:
    await api.store.register_trainer(TrainerRow("t", 8, 0))
    await destination.register()
    grant = await destination.work(running=0, wanted=100)
    assert (grant.granted, grant.version) == (8, 0)
    assert grant.waiting is not None


async def test_the_same_group_twice_is_new_once(destination: NativeDestination) -> None:
    group = make_group(draw=0)
    assert [(await destination.post(group)).new for _ in range(2)] == [True, False]


async def test_what_is_no_group_is_refused_by_name(destination: NativeDestination) -> None:
    with pytest.raises(ApiError) as caught:
        await destination.post(b"garbage")
    assert (caught.value.status, caught.value.kind) == (400, "bad_group")


async def test_an_api_on_a_new_store_is_registered_at_again(
    api: RunningApi, destination: NativeDestination, tmp_path: Path
) -> None:
    await destination.register()
    await api.stop()
    api.database = tmp_path / "another.db"
    await api.start()
    assert (await destination.post(make_group(draw=0))).new
    assert (await destination.work(running=0, wanted=4)).version == 0


async def all_scores(destination: NativeDestination) -> list[list[float]]:
    found = []
    while page := await destination.new_scores():
        found += [group.scores for group in page]
    return found


def scored(score: float) -> bytes:
    return make_group(rollouts=(make_rollout(score=score),))


async def test_scores_are_new_once_and_include_those_of_replicas(
    connection: ApiConnection, destination: NativeDestination
) -> None:
    replica = NativeDestination(connection, REGISTRATION.model_copy(update={"instance": "1/2"}))
    await replica.register()
    await replica.post(scored(0.1))
    await destination.register()
    assert await all_scores(destination) == [[0.1]]
    await destination.post(scored(0.2))
    await replica.post(scored(0.3))
    assert await all_scores(destination) == [[0.2], [0.3]]
    assert await all_scores(destination) == []
    assert await all_scores(replica) == [[0.1], [0.2], [0.3]]


async def test_scores_begin_again_on_another_database(
    api: RunningApi, destination: NativeDestination, tmp_path: Path
) -> None:
    await destination.register()
    for score in (0.1, 0.2):
        await destination.post(scored(score))
    assert await all_scores(destination) == [[0.1], [0.2]]
    await api.stop()
    api.database = tmp_path / "another.db"
    await api.start()
    await destination.post(scored(0.3))
    assert await all_scores(destination) == [[0.3]]


async def test_an_api_without_scores_says_to_upgrade_it() -> None:
    async def register(_: web.Request) -> web.Response:
        known = {"id": 1, "name": "e", "instance": "", "group_size": 4, "weight": 1.0, "minimum": 0.0}
        return web.json_response(known | {"connected": True, "running": 0, "cursor": None, "seen_at": 0.0})

    async def no_route(_: web.Request) -> web.Response:
        return web.json_response({"kind": "no_such_route", "message": "Not Found", "field": None}, status=404)

    app = web.Application()
    app.router.add_post("/v1/environments", register)
    app.router.add_get("/v1/environments/1/scores", no_route)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with ApiConnection(f"http://127.0.0.1:{runner.addresses[0][1]}") as connection:
            with pytest.raises(ConfigError, match=r"is older than this hermes-rl.*upgrade it"):
                await NativeDestination(connection, REGISTRATION).new_scores()
    finally:
        await runner.cleanup()


async def test_leaving_disconnects(api: RunningApi, destination: NativeDestination) -> None:
    await destination.register()
    await destination.leave()
    assert [one.connected for one in await api.store.environments()] == [False]


async def test_an_api_that_stands_still_is_away_at_once_for_a_post(
    api: RunningApi, destination: NativeDestination
) -> None:
    await destination.register()
    await api.stop()
    with pytest.raises(ApiUnavailableError, match="cannot be reached"):
        await destination.post(make_group())


async def test_a_server_of_another_kind_is_no_destination(page: str) -> None:
    async with ApiConnection(page) as connection:
        with pytest.raises(ConfigError, match="is neither `hermes-rl api` nor Atropos' run-api"):
            await find_destination(connection, REGISTRATION, patience=0)


@pytest.fixture
async def page() -> AsyncIterator[str]:
    """The address of a web server that has nothing to do with us."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="<html>hello</html>")

    app = web.Application()
    app.router.add_get("/", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_groups_spooled_while_the_api_restarts_arrive_in_order(
    api: RunningApi, destination: NativeDestination, tmp_path: Path
) -> None:
    async with Spool(tmp_path / "spool") as spool, Delivery(destination, spool) as delivery:
        for draw in range(12):
            if draw == 4:
                await api.stop()
            if draw == 8:
                await api.start()
            await delivery.put(make_group(draw=draw), draw)
        assert await delivery.flush(SOON) == 0
    assert await posted_draws(api) == list(range(12))


async def test_a_group_whose_answer_was_lost_is_in_the_store_once(
    api: RunningApi, line: Line, frail: ApiConnection, tmp_path: Path
) -> None:
    destination = NativeDestination(frail, REGISTRATION)
    await destination.register()
    async with Spool(tmp_path / "spool") as spool, Delivery(destination, spool) as delivery:
        for draw in range(6):
            line.cut_answers = 1
            await delivery.put(make_group(draw=draw), draw)
            assert await delivery.flush(SOON) == 0
    assert line.cuts == 6
    assert (await api.store.status()).total.waiting_groups == 6
    assert await posted_draws(api) == list(range(6))


async def test_a_deliverer_killed_again_and_again_loses_and_doubles_nothing(
    api: RunningApi, destination: NativeDestination, tmp_path: Path
) -> None:
    said: list[int] = []
    for kill in range(4):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, PROGRAM, api.url, tmp_path / "spool", str(1000 * kill)),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        said += [int(await process.stdout.readline()) for _ in range(15)]
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in (await process.stdout.read()).splitlines(keepends=True) if line.endswith(b"\n")]
        await process.wait()
    async with Spool(tmp_path / "spool") as spool, Delivery(destination, spool) as delivery:
        assert await delivery.flush(SOON) == 0
    arrived = await posted_draws(api)
    assert arrived == sorted(set(arrived))
    assert set(said) <= set(arrived)

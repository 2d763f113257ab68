import asyncio

import pytest

from hermes_rl.api.server import ApiSettings
from hermes_rl.store.codec import decode
from hermes_rl.store.database import groups
from hermes_rl.store.database.store import Store
from tests.store.database.making import make_group
from tests.support.trajectory_api import Caller, calling


async def test_a_group_is_in_the_store_when_its_post_is_answered(api: Caller, store: Store) -> None:
    data = make_group(id="g")
    status, answer = await api.post(await api.register(), data)
    found = await store.group("g")
    assert (status, answer) == (201, {"new": True, "place": 1}) and found is not None and found.data == data


async def test_a_group_that_is_posted_twice_counts_once(api: Caller) -> None:
    environment, data = await api.register(), make_group()
    await api.post(environment, data)
    assert await api.post(environment, data) == (200, {"new": False, "place": 1})


async def test_posts_of_one_group_at_the_same_time_count_once(api: Caller) -> None:
    environment, data = await api.register(), make_group()
    answers = await asyncio.gather(*(api.post(environment, data) for _ in range(8)))
    assert sorted(answer["new"] for _, answer in answers) == [*[False] * 7, True]


async def test_a_post_of_an_unknown_environment_says_to_register(api: Caller) -> None:
    status, answer = await api.post(77, make_group())
    assert status == 404 and answer["kind"] == "unknown_environment" and "register" in answer["message"]


@pytest.mark.parametrize("data", [b"", b"garbage", make_group()[:-1], make_group() + b"x", bytes(1_000)])
async def test_what_is_no_group_is_refused(api: Caller, data: bytes) -> None:
    status, answer = await api.post(await api.register(), data)
    assert (status, answer["kind"]) == (400, "bad_group")


async def test_a_flipped_bit_anywhere_is_refused(api: Caller) -> None:
    environment, data = await api.register(), bytearray(make_group())
    for place in range(0, len(data), 97):
        data[place] ^= 1
        status, answer = await api.post(environment, bytes(data))
        data[place] ^= 1
        assert (status, answer["kind"]) == (400, "bad_group"), place


async def test_a_group_of_another_type_is_refused(api: Caller) -> None:
    path = f"/v1/environments/{await api.register()}/groups"
    status, answer = await api("POST", path, data=make_group(), headers={"Content-Type": "text/html"})
    assert (status, answer["kind"]) == (415, "wrong_type")


async def test_a_body_without_a_length_is_refused(api: Caller) -> None:
    async def parts() -> object:
        yield make_group()

    status, answer = await api("POST", f"/v1/environments/{await api.register()}/groups", data=parts())
    assert (status, answer["kind"]) == (411, "no_length")


async def test_a_wrong_field_is_named(api: Caller) -> None:
    status, answer = await api("POST", "/v1/environments", json={"name": "e", "minimum": 2})
    assert (status, answer["field"]) == (422, "minimum")


async def test_an_unknown_field_is_named(api: Caller) -> None:
    status, answer = await api("POST", "/v1/environments", json={"name": "e", "colour": 2})
    assert (status, answer["field"]) == (422, "colour")


async def test_an_environment_keeps_its_number_and_its_place(api: Caller) -> None:
    number = await api.register("e", instance="0/2")
    await api("POST", f"/v1/environments/{number}/work", json={"running": 0, "cursor": 5})
    status, again = await api("POST", "/v1/environments", json={"name": "e", "instance": "0/2"})
    assert (status, again["id"], again["cursor"]) == (200, number, 5)


async def test_no_work_is_granted_before_there_is_a_trainer(api: Caller) -> None:
    path = f"/v1/environments/{await api.register()}/work"
    _, answer = await api("POST", path, json={"running": 0, "wanted": 4})
    assert answer["granted"] == 0 and "trainer" in answer["waiting"]


async def test_work_is_granted_up_to_what_would_grow_stale(api: Caller) -> None:
    await api.train(8, max_staleness=1)
    path = f"/v1/environments/{await api.register()}/work"
    _, answer = await api("POST", path, json={"running": 0, "wanted": 100})
    assert answer["granted"] == 16


async def test_two_environments_share_one_capacity(api: Caller) -> None:
    await api.train(8, max_staleness=1)
    numbers = [await api.register(name) for name in "ab"]
    wishes = [api("POST", f"/v1/environments/{number}/work", json={"running": 0, "wanted": 12}) for number in numbers]
    assert sum(answer["granted"] for _, answer in await asyncio.gather(*wishes)) == 16


async def test_a_new_version_makes_room(api: Caller) -> None:
    await api.train(8, max_staleness=0)
    path = f"/v1/environments/{await api.register()}/work"
    await api("POST", path, json={"running": 0, "wanted": 8})
    full = (await api("POST", path, json={"running": 8, "wanted": 8}))[1]["granted"]
    await api("POST", "/v1/version", json={"version": 1, "by": "a"})
    # What runs still counts; the step of the version that ended no longer does.
    assert (full, (await api("POST", path, json={"running": 0, "wanted": 8}))[1]["granted"]) == (0, 8)


async def test_finished_draws_are_told(api: Caller) -> None:
    environment = await api.register()
    for draw in (3, 1, 7):
        await api.post(environment, make_group(draw=draw))
    assert (await api("GET", f"/v1/environments/{environment}/draws?since=2"))[1] == {"draws": [3, 7]}


async def test_scores_of_stored_groups_are_told(api: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "SETTLE_SECONDS", -1)
    environment = await api.register()
    for _ in range(3):
        await api.post(environment, make_group(2))
    told = [{"place": place, "item_id": "item", "scores": [0.5, 0.5]} for place in (2, 3)]
    assert await api("GET", f"/v1/environments/{environment}/scores?after=1") == (200, {"groups": told})


async def test_scores_of_an_unknown_environment_say_to_register(api: Caller) -> None:
    status, answer = await api("GET", "/v1/environments/77/scores")
    assert (status, answer["kind"]) == (404, "unknown_environment")


async def test_one_that_says_goodbye_is_not_connected(api: Caller) -> None:
    number = await api.register()
    assert (await api("POST", f"/v1/environments/{number}/leave"))[0] == 204
    assert [one["connected"] for one in (await api("GET", "/v1/environments"))[1]] == [False]


async def test_a_full_queue_refuses_after_a_while_and_says_when_to_come_again(store: Store) -> None:
    async with calling(store, ApiSettings(max_queued=4, full_patience=0.1)) as api:
        environment = await api.register()
        await api.post(environment, make_group(4))
        await asyncio.sleep(0.6)
        path = f"/v1/environments/{environment}/groups"
        async with api.session.post(path, data=make_group()) as response:
            assert response.status == 429 and response.headers["Retry-After"] == "1"


async def test_a_post_that_is_held_goes_in_when_there_is_room(store: Store) -> None:
    async with calling(store, ApiSettings(max_queued=4, full_patience=10)) as api:
        environment = await api.register()
        await api.train(4)
        await api.post(environment, make_group(4))
        await asyncio.sleep(0.6)
        held = asyncio.create_task(api.post(environment, make_group(4)))
        await asyncio.sleep(0.3)
        assert not held.done()
        await api.lease()
        assert (await held)[0] == 201


async def test_a_group_can_be_read_back_by_its_id(api: Caller) -> None:
    data = make_group(id="g")
    await api.post(await api.register(), data)
    status, answer = await api("GET", "/v1/groups/g")
    assert status == 200 and decode(answer) == decode(data)


async def test_an_unknown_group_is_not_found(api: Caller) -> None:
    status, answer = await api("GET", "/v1/groups/none")
    assert (status, answer["kind"]) == (404, "unknown_group")

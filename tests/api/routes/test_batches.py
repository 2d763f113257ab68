import asyncio
from typing import Any

from hermes_rl.api.schemas import FRAME
from hermes_rl.store.database.groups import Retention
from hermes_rl.store.database.store import Store
from tests.store.database.making import make_group
from tests.support.trajectory_api import Caller


async def filled(api: Caller, count: int = 2, batch_size: int = 8) -> list[bytes]:
    """Groups of four that were posted in this order."""
    await api.train(batch_size)
    environment = await api.register()
    groups = [make_group() for _ in range(count)]
    for data in groups:
        await api.post(environment, data)
    return groups


def frames(stream: bytes) -> list[bytes]:
    groups, at = [], 0
    while at < len(stream):
        [size] = FRAME.unpack_from(stream, at)
        at += FRAME.size
        groups.append(stream[at : at + size])
        at += size
    return groups


async def leased(api: Caller, **fields: Any) -> int:
    status, batch = await api.lease(**fields)
    assert status == 200
    return int(batch["id"])


async def test_a_batch_comes_out_oldest_first_as_it_went_in(api: Caller) -> None:
    groups = await filled(api, 3)
    batch = await leased(api)
    assert frames((await api("GET", f"/v1/batches/{batch}/groups"))[1]) == groups[:2]


async def test_a_batch_can_be_read_again(api: Caller) -> None:
    groups = await filled(api)
    batch = await leased(api)
    await api("GET", f"/v1/batches/{batch}/groups")
    assert frames((await api("GET", f"/v1/batches/{batch}/groups"))[1]) == groups


async def test_the_size_of_a_stream_is_announced(api: Caller) -> None:
    groups = await filled(api)
    batch = await leased(api)
    async with api.session.get(f"/v1/batches/{batch}/groups") as response:
        assert response.content_length == sum(len(data) + FRAME.size for data in groups)


async def test_too_few_rollouts_make_no_batch(api: Caller) -> None:
    await filled(api, 1)
    assert await api.lease() == (204, b"")


async def test_one_that_waits_is_given_the_batch_as_soon_as_it_is_there(api: Caller) -> None:
    await filled(api, 1)
    waiting = asyncio.create_task(api.lease(wait=30))
    await asyncio.sleep(0.1)
    await api.post(1, make_group())
    async with asyncio.timeout(20):
        assert (await waiting)[0] == 200


async def test_the_wait_ends_with_no_batch(api: Caller) -> None:
    await filled(api, 1)
    assert (await api.lease(wait=0.2))[0] == 204


async def test_the_same_request_is_given_the_same_batch(api: Caller) -> None:
    await filled(api, 4)
    assert await leased(api, request="r") == await leased(api, request="r")


async def test_an_unknown_trainer_is_told_to_register(api: Caller) -> None:
    status, answer = await api.lease(trainer="nobody")
    assert (status, answer["kind"]) == (404, "unknown_trainer")


async def test_what_was_acknowledged_is_counted_once(api: Caller) -> None:
    await filled(api)
    batch = await leased(api)
    counts = [(await api("POST", "/v1/batches/acknowledge", json={"batches": [batch]}))[1]["count"] for _ in range(2)]
    assert counts == [1, 0]


async def test_what_was_given_back_comes_again_in_its_old_place(api: Caller) -> None:
    groups = await filled(api, 4)
    batch = await leased(api)
    await api("POST", "/v1/batches/release", json={"batches": [batch]})
    again = await leased(api)
    assert frames((await api("GET", f"/v1/batches/{again}/groups"))[1]) == groups[:2]


async def test_acknowledging_a_lost_batch_is_a_conflict(api: Caller) -> None:
    await filled(api)
    batch = await leased(api)
    await api("POST", "/v1/batches/release", json={"batches": [batch]})
    status, answer = await api("POST", "/v1/batches/acknowledge", json={"batches": [batch]})
    assert (status, answer["kind"]) == (409, "lease_lost")


async def test_a_lease_is_extended(api: Caller) -> None:
    await filled(api)
    _, batch = await api.lease(seconds=1)
    _, answer = await api("POST", f"/v1/batches/{batch['id']}/extend", json={"seconds": 100})
    assert answer["expires_at"] > batch["expires_at"] + 50


async def test_an_unknown_batch_is_not_found(api: Caller) -> None:
    assert [(await api("GET", f"/v1/batches/99{rest}"))[0] for rest in ("", "/groups")] == [404, 404]


async def test_bytes_that_were_let_go_are_gone(api: Caller, store: Store) -> None:
    await filled(api)
    batch = await leased(api)
    await api("POST", "/v1/batches/acknowledge", json={"batches": [batch]})
    await store.index_texts()
    await store.discard(Retention(bytes=0))
    status, answer = await api("GET", f"/v1/batches/{batch}/groups")
    assert (status, answer["kind"]) == (410, "gone")


async def test_open_batches_of_a_trainer_are_told(api: Caller) -> None:
    await filled(api)
    batch = await leased(api)
    assert (await api("GET", "/v1/trainers/trainer/batches"))[1] == {"batches": [batch]}


async def test_a_version_is_set_once(api: Caller) -> None:
    said = {"version": 3, "by": "one"}
    first = (await api("POST", "/v1/version", json=said))[1]
    again = (await api("POST", "/v1/version", json=said))[1]
    other = (await api("POST", "/v1/version", json={**said, "by": "another"}))[0]
    assert (first, again, other) == ({"new": True}, {"new": False}, 409)


async def test_a_trainer_cannot_need_what_nobody_has(api: Caller) -> None:
    said = {"name": "trainer", "batch_size": 1, "needs": ["luck"]}
    status, answer = await api("POST", "/v1/trainers", json=said)
    assert (status, answer["kind"]) == (422, "invalid")


async def test_a_reader_who_goes_away_takes_nobody_else_with_them(api: Caller) -> None:
    groups = await filled(api)
    batch = await leased(api)
    response = await api.session.get(f"/v1/batches/{batch}/groups")
    response.close()
    assert frames((await api("GET", f"/v1/batches/{batch}/groups"))[1]) == groups

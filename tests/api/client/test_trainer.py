import asyncio
from pathlib import Path

import pytest

from hermes_rl.api.client.connection import ApiConnection, ApiError, ApiUnavailableError
from hermes_rl.api.client.trainer import TrainerClient
from hermes_rl.api.schemas import LeasedBatch
from hermes_rl.store.codec import decode
from tests.api.client.running_api import Line, RunningApi
from tests.store.database.making import make_group, make_large_group

SOON = 20.0


@pytest.fixture
async def trainer(connection: ApiConnection) -> TrainerClient:
    client = TrainerClient(connection, "t", patience=SOON)
    await client.register(8)
    return client


@pytest.fixture
async def frail_trainer(trainer: TrainerClient, frail: ApiConnection) -> TrainerClient:
    return TrainerClient(frail, "t", patience=SOON)


async def fill(api: RunningApi, groups: list[bytes]) -> None:
    environment = await api.store.register_environment("e")
    for group in groups:
        await api.store.add(environment.id, group)


async def leased(trainer: TrainerClient) -> LeasedBatch:
    batch = await trainer.lease(wait=5)
    assert batch is not None
    return batch


async def read(trainer: TrainerClient, batch: LeasedBatch) -> list[bytes]:
    return [data async for data in trainer.groups(batch)]


async def test_a_batch_is_leased_read_and_acknowledged(api: RunningApi, trainer: TrainerClient) -> None:
    groups = [make_group(), make_group()]
    await fill(api, groups)
    batch = await leased(trainer)
    assert await read(trainer, batch) == groups
    assert await trainer.acknowledge(batch) == 1
    assert await trainer.on_loan() == []


async def test_groups_come_decoded(api: RunningApi, trainer: TrainerClient) -> None:
    groups = [make_group(), make_group()]
    await fill(api, groups)
    assert [group async for group in trainer.decoded(await leased(trainer))] == [decode(data) for data in groups]


async def test_an_acknowledgement_said_twice_counts_once(api: RunningApi, trainer: TrainerClient) -> None:
    await fill(api, [make_group(), make_group()])
    batch = await leased(trainer)
    assert [await trainer.acknowledge(batch.id) for _ in range(2)] == [1, 0]


async def test_without_a_batch_there_is_none_after_the_wait(trainer: TrainerClient) -> None:
    assert await trainer.lease(wait=0.1) is None


async def test_a_lease_waits_for_the_group_that_completes_the_batch(api: RunningApi, trainer: TrainerClient) -> None:
    await fill(api, [make_group()])
    waiting = asyncio.create_task(trainer.lease(wait=SOON))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await fill(api, [make_group()])
    assert await asyncio.wait_for(waiting, SOON) is not None


async def test_a_lease_whose_answer_was_lost_gives_the_same_batch(
    api: RunningApi, line: Line, frail_trainer: TrainerClient
) -> None:
    groups = [make_group() for _ in range(4)]
    await fill(api, groups)
    line.cut_answers = 2
    batch = await leased(frail_trainer)
    assert line.cuts == 2
    assert await read(frail_trainer, batch) == groups[:2]
    assert await frail_trainer.on_loan() == [batch.id]


async def test_a_lease_that_was_given_up_is_what_the_next_call_gets(
    api: RunningApi, line: Line, trainer: TrainerClient, frail: ApiConnection
) -> None:
    await fill(api, [make_group() for _ in range(4)])
    hasty = TrainerClient(frail, "t", patience=0)
    line.cut_answers = 1
    with pytest.raises(ApiUnavailableError):
        await hasty.lease(wait=1)
    (on_loan,) = await hasty.on_loan()
    assert (await leased(hasty)).id == on_loan


@pytest.mark.parametrize("bytes_let_through", [0, 100, 70_000, 130_000, 190_000])
async def test_a_batch_whose_stream_broke_comes_whole_and_once(
    api: RunningApi, line: Line, frail_trainer: TrainerClient, bytes_let_through: int
) -> None:
    groups = [make_large_group(f"{index}") for index in range(8)]
    await fill(api, groups)
    batch = await leased(frail_trainer)
    line.bytes_let_through = bytes_let_through
    line.cut_answers = 3
    assert await read(frail_trainer, batch) == groups
    assert line.cuts == 3


async def test_a_batch_that_never_comes_whole_is_told(
    api: RunningApi, line: Line, trainer: TrainerClient, frail: ApiConnection
) -> None:
    await fill(api, [make_large_group(f"{index}") for index in range(8)])
    batch = await leased(trainer)
    line.bytes_let_through, line.cut_answers = 1000, 10**6
    with pytest.raises(ApiUnavailableError):
        await read(TrainerClient(frail, "t", patience=0.3), batch)


async def test_a_group_of_another_size_than_it_was_leased_with_is_told(
    api: RunningApi, trainer: TrainerClient, connection: ApiConnection
) -> None:
    await fill(api, [make_group(), make_group()])
    batch = await leased(trainer)
    other = batch.model_copy(update={"groups": [batch.groups[0].model_copy(update={"bytes": 1}), batch.groups[1]]})
    with pytest.raises(ApiUnavailableError, match="instead of 1"):
        await read(TrainerClient(connection, "t", patience=0), other)


async def test_a_released_batch_is_leased_again_in_its_old_place(api: RunningApi, trainer: TrainerClient) -> None:
    groups = [make_group() for _ in range(4)]
    await fill(api, groups)
    assert await trainer.release(await leased(trainer)) == 1
    assert await read(trainer, await leased(trainer)) == groups[:2]


async def test_an_api_that_restarts_is_waited_for(api: RunningApi, trainer: TrainerClient) -> None:
    groups = [make_group(), make_group()]
    await fill(api, groups)
    batch = await leased(trainer)
    await api.stop()
    reading = asyncio.create_task(read(trainer, batch))
    await asyncio.sleep(0.3)
    await api.start()
    assert await reading == groups
    assert await trainer.acknowledge(batch) == 1


async def test_an_api_on_a_new_store_is_registered_at_again(
    api: RunningApi, trainer: TrainerClient, tmp_path: Path
) -> None:
    await api.stop()
    api.database = tmp_path / "another.db"
    await api.start()
    await fill(api, [make_group(), make_group()])
    assert len((await leased(trainer)).groups) == 2


async def test_a_trainer_that_never_registered_is_told(connection: ApiConnection) -> None:
    with pytest.raises(ApiError) as caught:
        await TrainerClient(connection, "nobody").lease(wait=0)
    assert caught.value.kind == "unknown_trainer"


async def test_a_version_said_again_by_the_same_life_is_not_new(trainer: TrainerClient) -> None:
    assert [await trainer.set_version(1) for _ in range(2)] == [True, False]


async def test_a_version_of_another_life_is_refused(connection: ApiConnection, trainer: TrainerClient) -> None:
    await trainer.set_version(1)
    with pytest.raises(ApiError) as caught:
        await TrainerClient(connection, "t").set_version(1)
    assert (caught.value.status, caught.value.kind) == (409, "version_used")


@pytest.fixture
async def batch(api: RunningApi, trainer: TrainerClient) -> LeasedBatch:
    await fill(api, [make_group(), make_group()])
    return await leased(trainer)


async def test_one_who_acknowledges_within_the_hold_goes_on_undisturbed(
    trainer: TrainerClient, batch: LeasedBatch
) -> None:
    async with trainer.held(batch, seconds=0.3):
        await trainer.acknowledge(batch)
        await asyncio.sleep(0.5)
    assert await trainer.on_loan() == []


async def extended(api: RunningApi, batch: LeasedBatch, beyond: float) -> float:
    """Until when the batch is leased, once that is another time than it was leased for, and after this one."""
    async with asyncio.timeout(SOON):
        while True:
            stored = await api.store.batch(batch.id)
            assert stored is not None
            if stored.expires_at != batch.expires_at and stored.expires_at > beyond:
                return stored.expires_at
            await asyncio.sleep(0.02)


async def test_a_batch_is_held_longer_than_it_was_leased_for(
    api: RunningApi, trainer: TrainerClient, batch: LeasedBatch
) -> None:
    seconds = 1.5
    async with trainer.held(batch, seconds=seconds):
        first = await extended(api, batch, 0)
        # By then the first extension is over.
        await extended(api, batch, first + seconds)
        assert await trainer.lease(wait=0) is None
    assert await trainer.acknowledge(batch) == 1


async def test_the_body_ends_when_its_batch_is_lost(
    connection: ApiConnection, trainer: TrainerClient, batch: LeasedBatch
) -> None:
    other_life = TrainerClient(connection, "t", patience=SOON)

    async def train() -> None:
        async with asyncio.timeout(SOON), trainer.held(batch, seconds=0.1):
            await other_life.release(batch)
            await other_life.lease(wait=1)
            await asyncio.sleep(3600)

    with pytest.raises(ApiError) as caught:
        await train()
    assert caught.value.kind == "lease_lost"


async def test_a_failure_in_the_body_is_the_callers_own(trainer: TrainerClient, batch: LeasedBatch) -> None:
    with pytest.raises(ZeroDivisionError):
        async with trainer.held(batch, seconds=5):
            1 / 0  # noqa: B018


async def test_a_cancelled_body_stays_cancelled(trainer: TrainerClient, batch: LeasedBatch) -> None:
    async def hold() -> None:
        async with trainer.held(batch, seconds=5):
            await asyncio.sleep(3600)

    task = asyncio.create_task(hold())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_while_the_api_is_away_the_body_goes_on(
    api: RunningApi, trainer: TrainerClient, batch: LeasedBatch, connection: ApiConnection
) -> None:
    hasty = TrainerClient(connection, "t", patience=0)
    async with hasty.held(batch, seconds=0.3):
        await api.stop()
        await asyncio.sleep(0.5)
        await api.start()
        await asyncio.sleep(0.5)
    assert await trainer.acknowledge(batch) == 1

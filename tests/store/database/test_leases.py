import asyncio

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Sampling, Sequence
from hermes_rl.store.database.errors import LeaseLostError, UnknownTrainerError
from hermes_rl.store.database.leases import BatchLease
from hermes_rl.store.database.registrations import TrainerRow
from hermes_rl.store.database.store import Store, open_store
from tests.store.database.clock import START, open_clocked_store
from tests.store.database.making import add_groups, make_group, make_rollout, with_trainer

LONG = 600.0
OVERDUE = -1.0


async def leased(store: Store, seconds: float = LONG, request: str | None = None) -> BatchLease:
    batch = await store.lease("trainer", seconds=seconds, request=request)
    assert batch is not None
    return batch


def places(batch: BatchLease) -> list[int]:
    return [group.place for group in batch.groups]


async def test_batches_go_out_first_in_first_out(store: Store) -> None:
    added = await add_groups(store, await with_trainer(store), 4)
    assert [*places(await leased(store)), *places(await leased(store))] == added


async def test_too_few_rollouts_make_no_batch(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 1)
    assert await store.lease("trainer", seconds=LONG) is None


async def test_a_trainer_that_is_not_registered_is_told_so(store: Store) -> None:
    with pytest.raises(UnknownTrainerError, match="register"):
        await store.lease("nobody", seconds=LONG)


async def test_a_trainer_that_registers_again_has_its_new_batch_size(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 1)
    await store.register_trainer(TrainerRow("trainer", 4))
    assert (await leased(store)).size == 4


async def test_a_batch_of_no_rollouts_is_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match="batch_size must be at least 1"):
        await store.register_trainer(TrainerRow("trainer", 0))


async def test_a_leased_group_is_given_to_nobody_else(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    await leased(store)
    assert await store.lease("trainer", seconds=LONG) is None


async def test_leases_asked_for_at_once_share_no_group(address: str) -> None:
    async with open_store(address) as one, open_store(address) as other:
        added = await add_groups(one, await with_trainer(one, batch_size=4), 12)
        batches = await asyncio.gather(*(store.lease("trainer", seconds=LONG) for store in [one, other] * 8))
        assert sorted(place for batch in batches if batch for place in places(batch)) == added


async def test_a_lapsed_lease_returns_in_its_old_place(store: Store) -> None:
    added = await add_groups(store, await with_trainer(store), 4)
    await leased(store, OVERDUE)
    assert places(await leased(store)) == added[:2]


async def test_a_lease_is_held_until_the_second_it_expires_and_no_longer(address: str) -> None:
    async with open_clocked_store(address) as (store, clock):
        added = await add_groups(store, await with_trainer(store), 2)
        assert (await leased(store, 60)).expires_at == START + 60
        await clock.advance(59)
        assert await store.lease("trainer", seconds=60) is None
        await clock.advance(1)
        assert places(await leased(store, 60)) == added


async def test_an_extended_lease_is_held_until_the_second_it_expires_and_no_longer(address: str) -> None:
    async with open_clocked_store(address) as (store, clock):
        added = await add_groups(store, await with_trainer(store), 2)
        batch = await leased(store, 60)
        await clock.advance(30)
        assert await store.extend(batch.id, 60) == START + 90
        await clock.advance(59)
        assert await store.lease("trainer", seconds=60) is None
        await clock.advance(1)
        assert places(await leased(store, 60)) == added


async def test_the_status_counts_a_batch_as_leased_until_the_second_it_expires(address: str) -> None:
    async with open_clocked_store(address) as (store, clock):
        await add_groups(store, await with_trainer(store), 2)
        await leased(store, 60)
        await clock.advance(59)
        assert (await store.status()).total.waiting_groups == 0
        await clock.advance(1)
        assert (await store.status()).total.waiting_groups == 2


async def test_a_released_batch_returns_in_its_old_place(store: Store) -> None:
    added = await add_groups(store, await with_trainer(store), 4)
    await store.release((await leased(store)).id)
    assert places(await leased(store)) == added[:2]


async def test_releasing_again_changes_nothing(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    first = await leased(store)
    assert [await store.release(first.id), await store.release(first.id)] == [1, 0]


async def test_an_acknowledged_batch_never_returns(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    await store.ack((await leased(store, OVERDUE)).id)
    assert await store.lease("trainer", seconds=LONG) is None


async def test_acknowledging_again_counts_once(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    batch = await leased(store)
    assert [await store.ack(batch.id), await store.ack(batch.id)] == [1, 0]
    [tally] = await store.tallies()
    assert (tally.outcome, tally.groups, tally.rollouts) == ("trained", 2, 8)


async def test_acknowledging_at_once_counts_once(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    batch = await leased(store)
    assert sum(await asyncio.gather(*(store.ack(batch.id) for _ in range(8)))) == 1


async def test_a_late_acknowledgement_counts_while_nobody_took_the_groups(store: Store) -> None:
    environment = await with_trainer(store)
    await add_groups(store, environment, 2)
    batch = await leased(store, OVERDUE)
    await store.lease("trainer", batch_size=1_000, seconds=LONG)
    assert await store.ack(batch.id) == 1


async def test_an_acknowledgement_is_refused_when_another_has_the_groups(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    late = await leased(store, OVERDUE)
    await leased(store)
    with pytest.raises(LeaseLostError, match="roll back"):
        await store.ack(late.id)


async def test_an_acknowledgement_of_a_released_batch_is_refused(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    batch = await leased(store)
    await store.release(batch.id)
    with pytest.raises(LeaseLostError, match="was released"):
        await store.ack(batch.id)


async def test_an_acknowledgement_of_no_batch_is_refused(store: Store) -> None:
    with pytest.raises(LeaseLostError, match="no batch 12"):
        await store.ack(12)


async def test_batches_are_acknowledged_together_or_not_at_all(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    batch = await leased(store)
    with pytest.raises(LeaseLostError):
        await store.ack(batch.id, batch.id + 1)
    assert await store.ack(batch.id) == 1


async def test_an_extended_lease_does_not_lapse(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    batch = await leased(store, OVERDUE)
    await store.extend(batch.id, LONG)
    assert await store.lease("trainer", seconds=LONG) is None


async def test_an_acknowledged_batch_cannot_be_extended(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    batch = await leased(store)
    await store.ack(batch.id)
    with pytest.raises(LeaseLostError, match="acknowledged"):
        await store.extend(batch.id, LONG)


async def test_the_same_request_is_given_the_same_batch(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 4)
    assert await leased(store, request="r") == await leased(store, request="r")


async def test_a_request_whose_batch_ended_is_refused(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 4)
    await store.ack((await leased(store, request="r")).id)
    with pytest.raises(LeaseLostError, match="new request"):
        await leased(store, request="r")


async def test_a_resumed_trainer_finds_what_it_had_on_loan(address: str) -> None:
    async with open_store(address) as store:
        await add_groups(store, await with_trainer(store), 4)
        batches = [(await leased(store)).id, (await leased(store)).id]
    async with open_store(address) as store:
        assert await store.open_batches("trainer") == batches


async def test_a_batch_is_found_by_its_number(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    batch = await leased(store)
    assert await store.batch(batch.id) == batch


async def test_groups_that_are_too_stale_are_dropped_and_counted(store: Store) -> None:
    environment = await with_trainer(store, batch_size=4, max_staleness=2)
    [_, fresh] = [
        *await add_groups(store, environment, 1, version=0),
        *await add_groups(store, environment, 1, version=1),
    ]
    await store.set_version(3, by="life")
    assert places(await leased(store)) == [fresh]
    [tally] = await store.tallies()
    assert (tally.outcome, tally.cause, tally.groups) == ("dropped", "stale", 1)


async def test_groups_on_loan_do_not_grow_stale(store: Store) -> None:
    await add_groups(store, await with_trainer(store, batch_size=4, max_staleness=0), 1)
    batch = await leased(store)
    await store.set_version(5, by="life")
    await store.lease("trainer", seconds=LONG)
    assert await store.ack(batch.id) == 1


@pytest.mark.parametrize(("logprob", "version", "cause"), [(None, 1, "no_logprobs"), (-1.0, None, "no_versions")])
async def test_groups_without_what_the_trainer_needs_are_refused_by_cause(
    store: Store, logprob: float | None, version: int | None, cause: str
) -> None:
    environment = await with_trainer(store, batch_size=1)
    sequence = Sequence((1, 2), (0, 1), (None, logprob), (None, version), Sampling(1.0))
    await store.add(environment, make_group(rollouts=(make_rollout(sequences=(sequence,)),)))
    assert await store.lease("trainer", seconds=LONG) is None
    assert [tally.cause for tally in await store.tallies()] == [cause]


async def test_a_trainer_that_needs_no_logprobs_is_given_groups_without(store: Store) -> None:
    environment = await with_trainer(store)
    await store.register_trainer(TrainerRow("trainer", 1, needs=()))
    sequence = Sequence((1, 2), (0, 1), (None, None), (None, None), Sampling(1.0))
    await store.add(environment, make_group(rollouts=(make_rollout(sequences=(sequence,)),)))
    assert (await leased(store)).size == 1


async def test_a_silent_environment_with_a_minimum_is_waited_for_by_nobody(address: str) -> None:
    async with open_store(address, heartbeat_timeout=-1.0) as store:
        environment = await with_trainer(store)
        await store.register_environment("silent", minimum=0.5)
        await add_groups(store, environment, 2)
        assert (await leased(store)).size == 8


async def test_a_live_environment_with_a_minimum_is_waited_for_until_it_disconnects(store: Store) -> None:
    environment = await with_trainer(store)
    other = await store.register_environment("other", minimum=0.5)
    await add_groups(store, environment, 2)
    assert await store.lease("trainer", seconds=LONG) is None
    await store.disconnect(other.id)
    assert (await leased(store)).size == 8


async def test_a_flood_from_one_environment_leaves_the_others_their_share(store: Store) -> None:
    environment = await with_trainer(store)
    other = (await store.register_environment("other")).id
    await add_groups(store, environment, 6)
    [late] = await add_groups(store, other, 1)
    assert late in places(await leased(store))


async def test_an_emptied_queue_gives_no_batch_and_counts_what_it_held(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 3)
    batch = await leased(store)
    assert await store.drop_all("reset") == 3
    assert [(tally.cause, tally.groups) for tally in await store.tallies()] == [("reset", 3)]
    with pytest.raises(LeaseLostError):
        await store.ack(batch.id)


async def test_acknowledged_batches_are_counted_from_the_last_registration(store: Store) -> None:
    environment = await with_trainer(store)
    counts = []
    for _ in range(2):
        await add_groups(store, environment, 2)
        batch = await store.lease("trainer", seconds=10)
        assert batch is not None
        counts.append(await store.acknowledged("trainer"))
        await store.ack(batch.id)
        counts.append(await store.acknowledged("trainer"))
        await with_trainer(store)
    assert counts == [0, 1, 0, 1]

import asyncio

import pytest

from hermes_rl.store.database.errors import UnknownEnvironmentError
from hermes_rl.store.database.registrations import TrainerRow
from hermes_rl.store.database.store import Store
from tests.store.database.clock import open_clocked_store
from tests.store.database.making import add_groups, with_trainer

NO_LIMIT = 10**6


async def granted(store: Store, environment: int, wanted: int, running: int = 0, limit: int = NO_LIMIT) -> int:
    return (await store.admit(environment, running=running, wanted=wanted, limit=limit)).granted


async def test_nothing_is_granted_before_a_trainer_says_how_stale_is_too_stale(store: Store) -> None:
    environment = (await store.register_environment("e")).id
    admission = await store.admit(environment, running=0, wanted=4, limit=NO_LIMIT)
    assert admission.granted == 0 and admission.waiting is not None and "trainer" in admission.waiting


async def test_what_is_granted_counts_as_running(store: Store) -> None:
    environment = await with_trainer(store, 8, max_staleness=0)
    replica = (await store.register_environment("e", instance="1/2")).id
    assert (await granted(store, environment, 6), await granted(store, replica, 6)) == (6, 2)


async def test_what_was_granted_and_did_not_begin_is_free_again(store: Store) -> None:
    environment = await with_trainer(store, 8, max_staleness=0)
    await granted(store, environment, 8)
    assert await granted(store, environment, 8, running=0) == 8


async def test_wishes_at_the_same_time_are_granted_once(store: Store) -> None:
    await with_trainer(store, 8, max_staleness=1)
    numbers = [(await store.register_environment("e", instance=str(one))).id for one in range(8)]
    assert sum(await asyncio.gather(*(granted(store, number, 5) for number in numbers))) == 16


async def test_what_waits_uses_up_the_capacity(store: Store) -> None:
    environment = await with_trainer(store, 8, max_staleness=0)
    await add_groups(store, environment, 1, size=4)
    assert await granted(store, environment, 100) == 4


async def test_a_trainer_that_does_not_mind_leaves_the_limit(store: Store) -> None:
    environment = await with_trainer(store, 8, max_staleness=None)
    admission = await store.admit(environment, running=0, wanted=100, limit=20)
    assert (admission.granted, admission.waiting) == (20, "the queue is full")


async def test_an_environment_has_its_minimum_whatever_the_others_took(store: Store) -> None:
    environment = await with_trainer(store, 8, max_staleness=0)
    owed = (await store.register_environment("e", instance="1/2", minimum=0.25)).id
    await granted(store, environment, 8)
    assert await granted(store, owed, 8) == 2


async def test_a_slow_environment_that_took_all_does_not_keep_a_fast_one_waiting(store: Store) -> None:
    slow = await with_trainer(store, 8, max_staleness=1)
    fast = (await store.register_environment("fast")).id
    assert await granted(store, slow, 100) == 16
    assert await granted(store, fast, 100) == 4


async def test_what_a_fast_environment_asked_for_in_vain_is_its_own_when_it_is_free_again(store: Store) -> None:
    slow = await with_trainer(store, 8, max_staleness=1)
    fast = (await store.register_environment("fast")).id
    await granted(store, slow, 100)
    await granted(store, fast, 100)
    # Half of what the slow one ran has ended, and it asks first.
    admission = await store.admit(slow, running=8, wanted=100, limit=NO_LIMIT)
    assert (admission.granted, admission.waiting) == (0, "the rest is the share of other environments")
    assert await granted(store, fast, 100, running=4) == 4


async def test_one_that_asks_for_no_more_leaves_its_share_to_the_others(store: Store) -> None:
    environment = await with_trainer(store, 8, max_staleness=1)
    other = (await store.register_environment("other")).id
    await granted(store, other, 100)
    await granted(store, other, 0, running=2)
    assert await granted(store, environment, 100) == 14


async def test_a_dead_environment_has_no_share(address: str) -> None:
    async with open_clocked_store(address, heartbeat_timeout=60) as (store, clock):
        environment = await with_trainer(store, 8, max_staleness=0)
        other = (await store.register_environment("other")).id
        await granted(store, environment, 100)
        await granted(store, other, 100)
        await clock.advance(61)
        assert await granted(store, environment, 100) == 8


async def test_the_oldest_version_that_is_still_trained_on_is_told(store: Store) -> None:
    environment = await with_trainer(store, 8, max_staleness=2)
    await store.set_version(7, by="trainer")
    assert (await store.admit(environment, running=0, wanted=0, limit=NO_LIMIT)).oldest == 5


async def test_a_trainer_that_takes_any_version_tells_none(store: Store) -> None:
    environment = await with_trainer(store, 8, max_staleness=None)
    assert (await store.admit(environment, running=0, wanted=0, limit=NO_LIMIT)).oldest is None


async def test_a_silent_environment_holds_no_capacity(address: str) -> None:
    async with open_clocked_store(address, heartbeat_timeout=60) as (store, clock):
        environment = await with_trainer(store, 8, max_staleness=0)
        await granted(store, environment, 8)
        other = (await store.register_environment("other")).id
        await clock.advance(61)
        assert await granted(store, other, 8) == 8


async def test_all_of_the_wish_granted_leaves_nothing_to_wait_for(store: Store) -> None:
    environment = await with_trainer(store, 8, max_staleness=0)
    assert (await store.admit(environment, running=0, wanted=8, limit=NO_LIMIT)).waiting is None


async def test_the_cursor_is_kept(store: Store) -> None:
    environment = await with_trainer(store)
    await store.admit(environment, running=0, wanted=0, cursor=7, limit=NO_LIMIT)
    assert (await store.register_environment("e")).cursor == 7


async def test_one_that_is_not_registered_is_told_so(store: Store) -> None:
    await store.register_trainer(TrainerRow("trainer", 8))
    with pytest.raises(UnknownEnvironmentError):
        await granted(store, 99, 1)


async def test_nothing_is_granted_beyond_the_steps_that_are_left(store: Store) -> None:
    await store.register_trainer(TrainerRow("t", 8, 3, settings={"total_steps": 2}))
    environment = (await store.register_environment("e")).id
    admission = await store.admit(environment, running=0, wanted=100, limit=NO_LIMIT)
    assert (admission.granted, admission.waiting) == (16, "the trainer needs no more for its remaining steps")
    await add_groups(store, environment, 1, size=4)
    assert await granted(store, environment, 100, running=8) == 4

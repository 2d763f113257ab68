import asyncio
import math

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.store.database.errors import UnknownEnvironmentError, UnknownTrainerError, VersionUsedError
from hermes_rl.store.database.registrations import TrainerRow
from hermes_rl.store.database.store import Store, open_store
from hermes_rl.store.database.views import Backlog
from tests.store.database.making import add_groups, make_group, with_trainer


async def test_an_environment_that_registers_again_keeps_its_number(address: str) -> None:
    async with open_store(address) as store:
        first = await store.register_environment("e", instance="0")
    async with open_store(address) as store:
        assert (await store.register_environment("e", instance="0")).id == first.id


async def test_replicas_of_one_name_have_numbers_of_their_own(store: Store) -> None:
    numbers = [(await store.register_environment("e", instance=str(shard))).id for shard in range(3)]
    assert len(set(numbers)) == 3


async def test_registering_at_once_makes_one_environment(store: Store) -> None:
    registered = await asyncio.gather(*(store.register_environment("e") for _ in range(16)))
    assert len({one.id for one in registered}) == 1


async def test_an_environment_is_kept_as_it_registered(store: Store) -> None:
    said = await store.register_environment(
        "e", group_size=8, weight=2.0, minimum=0.25, settings={"wandb": "x\0", "max_token_length": 9}
    )
    [kept] = await store.environments()
    assert kept == said
    assert (kept.group_size, kept.weight, kept.minimum, kept.settings["max_token_length"]) == (8, 2.0, 0.25, 9)


@pytest.mark.parametrize("minimum", [-0.1, 1.1, math.nan])
async def test_a_minimum_is_a_part_of_a_batch(store: Store, minimum: float) -> None:
    with pytest.raises(ConfigError, match="0 to 1"):
        await store.register_environment("e", minimum=minimum)


async def test_a_weight_is_a_number(store: Store) -> None:
    with pytest.raises(ConfigError, match="weight"):
        await store.register_environment("e", weight=math.inf)


async def test_an_unknown_environment_is_told_to_register(store: Store) -> None:
    with pytest.raises(UnknownEnvironmentError, match="register"):
        await store.heartbeat(5, running=0)


async def test_a_cursor_outlives_the_store_and_the_environment(address: str) -> None:
    async with open_store(address) as store:
        environment = await store.register_environment("e")
        await store.heartbeat(environment.id, running=3, cursor=41)
    async with open_store(address) as store:
        assert (await store.register_environment("e")).cursor == 41


async def test_a_cursor_never_goes_back(store: Store) -> None:
    environment = await store.register_environment("e")
    for cursor in (0, 7, None, 3):
        await store.heartbeat(environment.id, running=0, cursor=cursor)
    assert (await store.register_environment("e")).cursor == 7


async def test_an_environment_learns_which_draws_are_finished(store: Store) -> None:
    environment = await with_trainer(store)
    for draw in (9, 4, 6):
        await store.add(environment, make_group(draw=draw))
    assert await store.finished_draws(environment, since=5) == [6, 9]


async def test_the_trainer_that_registered_last_is_the_trainer(store: Store) -> None:
    await store.register_trainer(TrainerRow("old", 4))
    trainer = TrainerRow("new", 8, 2, ("versions",), {"steps": 5})
    await store.register_trainer(trainer)
    assert await store.trainer() == trainer


async def test_a_trainer_cannot_need_what_nobody_knows(store: Store) -> None:
    with pytest.raises(ConfigError, match="images"):
        await store.register_trainer(TrainerRow("t", 4, needs=("images",)))


async def test_a_version_outlives_the_store(address: str) -> None:
    async with open_store(address) as store:
        await store.set_version(3, by="life")
    async with open_store(address) as store:
        assert await store.version() == 3


async def test_a_version_may_be_said_again_by_who_set_it(store: Store) -> None:
    assert [await store.set_version(3, by="life"), await store.set_version(3, by="life")] == [True, False]


@pytest.mark.parametrize("version", [2, 3])
async def test_a_version_is_never_used_twice(store: Store, version: int) -> None:
    await store.set_version(3, by="life")
    with pytest.raises(VersionUsedError, match="the next is 4"):
        await store.set_version(version, by="next life")


async def test_of_two_lives_that_set_one_version_at_once_one_is_refused(address: str) -> None:
    async with open_store(address) as one, open_store(address) as other:
        both = one.set_version(1, by="one"), other.set_version(1, by="other")
        done = await asyncio.gather(*both, return_exceptions=True)
        assert sum(isinstance(outcome, VersionUsedError) for outcome in done) == 1


async def test_status_tells_what_waits_and_what_is_on_loan(store: Store) -> None:
    environment = await with_trainer(store)
    await add_groups(store, environment, 3)
    await store.lease("trainer", seconds=600)
    assert (await store.status()).backlog == {environment: Backlog(1, 4, 2, 8)}


async def test_an_overdue_batch_is_told_as_waiting(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 2)
    await store.lease("trainer", seconds=-1)
    assert (await store.status()).total == Backlog(2, 8, 0, 0)


async def test_capacity_counts_what_waits_is_on_loan_and_runs(store: Store) -> None:
    environment = await with_trainer(store, max_staleness=1)
    await add_groups(store, environment, 3)
    await store.lease("trainer", seconds=600)
    await store.heartbeat(environment, running=2)
    assert (await store.status()).capacity == 2 * 8 - 12 - 2


async def test_a_batch_that_is_trained_on_and_not_acknowledged_yet_takes_no_capacity(store: Store) -> None:
    await add_groups(store, await with_trainer(store, max_staleness=1), 2)
    await store.lease("trainer", seconds=600)
    await store.set_version(1, by="life")
    assert (await store.status()).capacity == 16


async def test_what_a_dead_environment_ran_takes_no_capacity(address: str) -> None:
    async with open_store(address, heartbeat_timeout=-1.0) as store:
        environment = await with_trainer(store, max_staleness=1)
        await store.heartbeat(environment, running=9)
        assert (await store.status()).capacity == 16


async def test_without_a_limit_of_staleness_there_is_no_limit_of_capacity(store: Store) -> None:
    await with_trainer(store)
    assert (await store.status()).capacity is None


async def test_a_run_is_kept_as_it_was_put_last(store: Store) -> None:
    for state in ("starting", "running"):
        await store.put_run("r", name="a run", state=state, settings={"steps": 3})
    [run] = await store.runs()
    assert (run.id, run.name, run.state, run.settings) == ("r", "a run", "running", {"steps": 3})


async def test_a_forgotten_run_leaves_no_row_and_no_metrics_and_others_stay(store: Store) -> None:
    for run in ("r", "other"):
        await store.put_run(run, name=run, state="finished", settings={})
        await store.append_metrics(run, 0, {"loss": 1.0})
    await store.forget_run("r")
    assert [run.id for run in await store.runs()] == ["other"]
    assert await store.metrics("r") == []
    assert len(await store.metrics("other")) == 1


async def test_metrics_are_read_on_from_where_one_stopped(store: Store) -> None:
    for step in range(3):
        await store.append_metrics("r", step, {"loss": step / 2})
    first, *_ = await store.metrics("r", limit=1)
    assert [metric.value for metric in await store.metrics("r", after=first.id)] == [0.5, 1.0]


async def test_a_loss_that_is_no_number_is_kept_as_that(store: Store) -> None:
    await store.append_metrics("r", 0, {"loss": math.nan, "norm": math.inf})
    loss, norm = await store.metrics("r")
    assert math.isnan(loss.value) and math.isinf(norm.value)


async def test_metrics_of_another_run_are_not_told(store: Store) -> None:
    await store.append_metrics("other", 0, {"loss": 1.0})
    assert await store.metrics("r") == []


async def test_a_forgotten_trainer_leases_nothing(store: Store) -> None:
    await with_trainer(store)
    await store.forget_trainer("trainer")
    with pytest.raises(UnknownTrainerError):
        await store.lease("trainer", seconds=10)

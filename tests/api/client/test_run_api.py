"""Our environments' side against the real run-api of atroposlib 0.4.0."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.api.client.atropos_destination import AtroposDestination, AtroposLimits
from hermes_rl.api.client.connection import ApiConnection, ApiError, ApiUnavailableError
from hermes_rl.api.client.delivery import Delivery
from hermes_rl.api.client.destination import ResumeState, find_destination
from hermes_rl.api.client.spool import Spool
from hermes_rl.api.schemas import EnvironmentRegistration
from hermes_rl.core.fast_json import loads
from hermes_rl.store.codec import decode
from hermes_rl.store.records import atropos_columns
from tests.api.client.running_api import Line, line_to
from tests.api.client.trained_run_api import TrainedRunApi, trained_run_api
from tests.engines.atropos.conftest import atropos_python
from tests.store.database.making import make_group, make_rollout

__all__ = ["atropos_python"]

pytestmark = pytest.mark.parts

REGISTRATION = EnvironmentRegistration(name="e", group_size=4)
LIMITS = AtroposLimits(max_token_length=64, max_batches_offpolicy=2, include_messages=True)
SOON = 20.0


@pytest.fixture
async def run_api(atropos_python: Path, tmp_path: Path) -> AsyncIterator[TrainedRunApi]:
    async with trained_run_api(atropos_python, tmp_path) as running:
        yield running


@pytest.fixture
async def connection(run_api: TrainedRunApi) -> AsyncIterator[ApiConnection]:
    async with ApiConnection(run_api.url) as opened:
        yield opened


@pytest.fixture
async def destination(connection: ApiConnection) -> AtroposDestination:
    return AtroposDestination(connection, REGISTRATION, LIMITS)


async def test_run_api_is_found(connection: ApiConnection) -> None:
    assert isinstance(await find_destination(connection, REGISTRATION, patience=5), AtroposDestination)


async def test_before_the_trainer_begins_no_work_is_granted_and_it_says_why(
    run_api: TrainedRunApi, destination: AtroposDestination
) -> None:
    assert await destination.register() == ResumeState()
    await run_api.register()
    grant = await destination.work(running=0, wanted=8)
    assert (grant.granted, grant.waiting) == (0, "run-api is waiting for its trainer to request the first batch")


async def test_a_group_is_not_posted_before_the_trainer_begins_so_that_the_start_is_not_poisoned(
    run_api: TrainedRunApi, destination: AtroposDestination
) -> None:
    with pytest.raises(ApiUnavailableError, match="is waiting for its trainer"):
        await destination.post(make_group())
    await run_api.train()
    assert (await destination.post(make_group())).new
    assert await run_api.batch() is not None


async def test_a_group_arrives_as_atropos_columns(run_api: TrainedRunApi, destination: AtroposDestination) -> None:
    await run_api.train()
    data = make_group()
    await destination.post(data)
    batch = await run_api.batch()
    assert batch is not None
    columns: dict[str, Any] = atropos_columns(decode(data))
    (group,) = batch
    assert {name: group[name] for name in columns} == columns
    assert group["env_id"] == 0
    assert group["inference_logprobs"] == [[1.0, -0.5, -0.5]] * 4


async def test_messages_are_posted_only_if_asked_for(run_api: TrainedRunApi, connection: ApiConnection) -> None:
    await run_api.train()
    destination = AtroposDestination(connection, REGISTRATION, replace(LIMITS, include_messages=False))
    await destination.post(make_group())
    batch = await run_api.batch()
    assert batch is not None
    assert batch[0]["messages"] is None


async def test_work_is_granted_until_as_many_batches_wait_as_may(
    run_api: TrainedRunApi, destination: AtroposDestination
) -> None:
    await run_api.train(batch_size=8)
    granted = []
    for _ in range(5):
        granted.append((await destination.work(running=0, wanted=100)).granted)
        await destination.post(make_group())
    assert granted == [16, 12, 8, 4, 0]


async def test_what_runs_counts_against_what_may_begin(run_api: TrainedRunApi, destination: AtroposDestination) -> None:
    await run_api.train(batch_size=8)
    assert (await destination.work(running=12, wanted=8)).granted == 4


async def test_the_trainers_step_is_the_version(run_api: TrainedRunApi, destination: AtroposDestination) -> None:
    await run_api.train()
    await destination.post(make_group())
    await run_api.batch()
    assert (await destination.work(running=0, wanted=0)).version == 1


ROLLOUTS = tuple(make_rollout(index) for index in range(4))
ONE = ROLLOUTS[0]
LONG = replace(ONE.sequences[0], tokens=(5,) * 64, mask=(1,) * 64, logprobs=(-0.5,) * 64, versions=(0,) * 64)


@pytest.mark.parametrize(
    ("cause", "fields"),
    [
        ("group_size", {"rollouts": ROLLOUTS[:3]}),
        ("no_single_sequence", {"rollouts": (*ROLLOUTS[1:], replace(ONE, sequences=ONE.sequences * 2))}),
        ("no_single_sequence", {"rollouts": (*ROLLOUTS[1:], replace(ONE, sequences=()))}),
        ("withheld_rollout", {"rollouts": (*ROLLOUTS[1:], replace(ONE, withheld="too_long"))}),
        ("equal_scores", {"withheld": "equal_scores"}),
        ("too_long", {"rollouts": (*ROLLOUTS[1:], replace(ONE, sequences=(LONG,)))}),
    ],
)
async def test_a_group_of_another_shape_is_withheld_and_counted(
    run_api: TrainedRunApi, destination: AtroposDestination, cause: str, fields: dict[str, Any]
) -> None:
    await run_api.train()
    assert not (await destination.post(make_group(**fields))).new
    assert destination.withheld == {cause: 1}
    assert (await run_api.get("/status"))["queue_size"] == 0


async def test_a_message_without_content_is_taken(run_api: TrainedRunApi, destination: AtroposDestination) -> None:
    await run_api.train()
    silent = replace(ONE, messages=[{"role": "assistant", "tool_calls": []}])
    assert (await destination.post(make_group(rollouts=(*ROLLOUTS[1:], silent)))).new


async def test_what_is_no_group_is_refused(run_api: TrainedRunApi, destination: AtroposDestination) -> None:
    await run_api.train()
    with pytest.raises(ApiError) as caught:
        await destination.post(b"garbage")
    assert (caught.value.status, caught.value.kind) == (400, "bad_group")


async def test_after_run_api_died_groups_wait_for_its_next_trainer(
    run_api: TrainedRunApi, destination: AtroposDestination, tmp_path: Path
) -> None:
    await run_api.train()
    async with Spool(tmp_path / "spool") as spool, Delivery(destination, spool) as delivery:
        await delivery.put(make_group(), 0)
        assert await delivery.flush(SOON) == 0
        await run_api.kill()
        await delivery.put(make_group(), 1)
        assert await delivery.flush(0.3) == 1
        await run_api.start()
        assert await delivery.flush(0.5) == 1
        await run_api.train()
        assert await delivery.flush(SOON) == 0
    assert await run_api.batch() is not None


async def test_leaving_gives_its_weight_to_the_others(
    run_api: TrainedRunApi, connection: ApiConnection, destination: AtroposDestination
) -> None:
    await run_api.train()
    other = AtroposDestination(connection, REGISTRATION.model_copy(update={"name": "other"}), LIMITS)
    await destination.register()
    await other.register()
    await destination.leave()
    assert loads(await connection.request("GET", "/status-env", {"env_id": 1}))["env_weight"] == 1.0


async def test_who_comes_back_after_leaving_is_registered_again(
    run_api: TrainedRunApi, destination: AtroposDestination
) -> None:
    await run_api.train()
    await destination.register()
    await destination.leave()
    assert (await destination.work(running=0, wanted=4)).granted == 4


async def test_a_reset_run_api_is_registered_at_again(run_api: TrainedRunApi, destination: AtroposDestination) -> None:
    await run_api.train()
    await destination.register()
    await run_api.reset()
    assert (await destination.work(running=0, wanted=4)).granted == 0
    await run_api.train()
    assert (await destination.post(make_group())).new
    assert await run_api.batch() is not None


@pytest.fixture
async def line(run_api: TrainedRunApi) -> AsyncIterator[Line]:
    async with line_to(run_api.port) as opened:
        yield opened


async def test_a_group_whose_answer_was_lost_is_posted_again_and_stands_there_twice(
    run_api: TrainedRunApi, line: Line, tmp_path: Path
) -> None:
    await run_api.train(batch_size=8)
    async with ApiConnection(line.url) as frail:
        destination = AtroposDestination(frail, REGISTRATION, LIMITS)
        await destination.register()
        data = make_group()
        line.cut_at_path = b"POST /scored_data"
        line.cut_answers = 1
        async with Spool(tmp_path / "spool") as spool, Delivery(destination, spool) as delivery:
            await delivery.put(data, 0)
            assert await delivery.flush(SOON) == 0
    assert line.cuts == 1
    assert (await run_api.get("/status"))["queue_size"] == 2


async def test_an_environment_with_a_minimum_may_fill_its_part_of_a_queue_others_filled(
    run_api: TrainedRunApi, connection: ApiConnection, destination: AtroposDestination
) -> None:
    await run_api.train(batch_size=8)
    await asyncio.gather(*(destination.post(make_group()) for _ in range(4)))
    needed = AtroposDestination(connection, REGISTRATION.model_copy(update={"name": "n", "minimum": 0.5}), LIMITS)
    assert (await needed.work(running=0, wanted=100)).granted == 8

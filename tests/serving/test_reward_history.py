"""What a sampler by rewards knows in `serve`: the scores of the runs before, of its replicas, and of its own groups."""

import asyncio
import signal
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.api.client.atropos_destination import AtroposDestination, AtroposLimits
from hermes_rl.api.client.connection import ApiConnection
from hermes_rl.api.client.native_destination import NativeDestination
from hermes_rl.api.schemas import EnvironmentRegistration
from hermes_rl.core.trajectory import Group
from hermes_rl.rollout.item_rewards import ItemRewards
from hermes_rl.serving import reward_history
from hermes_rl.store.codec import decode
from hermes_rl.store.database.store import Store
from tests.api.client.trained_run_api import trained_run_api
from tests.engines.atropos.conftest import atropos_python
from tests.serving.counting_env import Listed, says_it
from tests.serving.parts import groups, serving, trainer, until
from tests.serving.test_command import started
from tests.store.database.making import make_failed, make_group, make_rollout
from tests.support.scripted_model import Hang
from tests.support.token_servers import Asked, VLLMServer
from tests.support.trajectory_api import served

__all__ = ["atropos_python"]

REGISTRATION = EnvironmentRegistration(name="e", group_size=4)
BY_DIFFICULTY = {"item_sampler": "by_difficulty"}


def hangs(_: Asked) -> Any:
    return Hang()


def expected(stored: Sequence[Group]) -> ItemRewards:
    rewards = ItemRewards()
    for group in stored:
        rewards.add(group.item_id, group.scores)
    return rewards


async def stored_rewards(store: Store) -> ItemRewards:
    return expected(await groups(store))


@pytest.mark.timeout(400)
async def test_a_killed_run_goes_on_with_the_rewards_it_knew(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=1000)
    async with (
        VLLMServer(says_it) as model,
        started(tmp_path, api, model.base_url, "--env.item_sampler", "by_difficulty", name="Listed") as process,
    ):
        await until(lambda: has_groups(store, 8))
        process.send_signal(signal.SIGKILL)
        await process.wait()
    known = await stored_rewards(store)
    assert known.largest_variance > 0
    async with VLLMServer(hangs) as model, serving(api, model.base_url, tmp_path, Listed, **BY_DIFFICULTY) as run:
        await until(lambda: model.open)
        assert run.env.item_rewards == known


async def has_groups(store: Store, count: int) -> bool:
    return len(await groups(store)) >= count


async def test_a_replica_draws_by_the_rewards_of_all(
    tmp_path: Path, store: Store, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_history, "READ_EVERY", 0.0)
    await trainer(store, max_staleness=1000)
    shards = [{"shards": 2, "shard": shard, **BY_DIFFICULTY} for shard in range(2)]
    async with (
        VLLMServer(says_it) as model,
        serving(api, model.base_url, tmp_path, Listed, **shards[0]) as one,
        serving(api, model.base_url, tmp_path, Listed, **shards[1]) as other,
    ):
        # More than its own groups: the rest is the other's.
        await until(lambda: all(run.env.item_rewards.groups > run.board.tally.groups > 4 for run in (one, other)))
        await asyncio.gather(one.stopped(), other.stopped())
    async with VLLMServer(hangs) as model, serving(api, model.base_url, tmp_path, Listed, **shards[0]) as again:
        await until(lambda: model.open)
        assert again.env.item_rewards == await stored_rewards(store)


async def test_scores_are_read_every_few_seconds_not_for_each_draw(
    tmp_path: Path, store: Store, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_history, "READ_EVERY", 1000.0)
    await trainer(store, max_staleness=1000)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, Listed, **BY_DIFFICULTY) as run:
        await until(lambda: run.board.tally.groups >= 5)
        assert run.env.item_rewards == ItemRewards()
        await run.stopped()


async def test_while_the_api_is_away_the_known_rewards_stay(store: Store) -> None:
    number = (await store.register_environment(REGISTRATION.name)).id
    await store.add(number, make_group())
    rewards = ItemRewards()
    async with served(store) as url, ApiConnection(url) as connection:
        destination = NativeDestination(connection, REGISTRATION)
        async with reward_history.reward_history(rewards, destination, Path("unused")) as history:
            await history.update()
            known = deepcopy(rewards)
    async with ApiConnection(url) as connection:
        destination = NativeDestination(connection, REGISTRATION)
        async with reward_history.reward_history(rewards, destination, Path("unused")) as history:
            await history.update()
    assert rewards == known and known.groups == 1


async def test_a_uniform_sampler_reads_no_scores(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=1000)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, Listed) as run:
        await until(lambda: run.board.tally.groups >= 5)
        await run.stopped()
    assert run.env.item_rewards == ItemRewards()


async def with_run_api(path: Path, *finished: Group) -> ItemRewards:
    """What is known after a run to run-api that finished these groups."""
    rewards = ItemRewards()
    destination = AtroposDestination(ApiConnection("http://127.0.0.1:1"), REGISTRATION, AtroposLimits())
    async with reward_history.reward_history(rewards, destination, path) as history:
        await history.update()
        for group in finished:
            history.add(group)
    return rewards


FINISHED = [
    decode(make_group(rollouts=tuple(make_rollout(score=score) for score in scores)))
    for scores in ([0.0, 0.7], [0.2, 0.2], [1.0, 0.3])
]


async def test_with_run_api_a_file_has_the_rewards_of_the_runs_before(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "e.scores.jsonl"
    await with_run_api(path, *FINISHED[:2])
    assert await with_run_api(path, FINISHED[2]) == expected(FINISHED) == await with_run_api(path)


async def test_a_line_torn_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "e.scores.jsonl"
    await with_run_api(path, *FINISHED[:2])
    path.write_bytes(path.read_bytes()[:-5])
    await with_run_api(path, FINISHED[2])
    assert await with_run_api(path) == expected([FINISHED[0], FINISHED[2]])


async def test_a_group_without_a_score_is_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "e.scores.jsonl"
    await with_run_api(path, decode(make_group(rollouts=(make_failed(),))))
    assert path.read_bytes() == b""


@pytest.mark.parts
async def test_a_run_to_run_api_goes_on_with_the_rewards_it_knew(atropos_python: Path, tmp_path: Path) -> None:
    async with trained_run_api(atropos_python, tmp_path) as run_api:
        await run_api.train(batch_size=64)
        async with (
            VLLMServer(says_it) as model,
            serving(run_api.url, model.base_url, tmp_path, Listed, **BY_DIFFICULTY) as run,
        ):
            await until(lambda: run.board.tally.groups >= 5)
            await run.stopped()
        known = run.env.item_rewards
        assert known.groups == run.board.tally.groups
        async with (
            VLLMServer(hangs) as model,
            serving(run_api.url, model.base_url, tmp_path, Listed, **BY_DIFFICULTY) as again,
        ):
            await until(lambda: model.open)
            assert again.env.item_rewards == known

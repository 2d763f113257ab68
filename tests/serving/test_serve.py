"""`serve` against a real API: what begins, what is delivered, what it waits for, and what ends it."""

import asyncio
import json
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import ConfigError
from hermes_rl.api.client.connection import ApiError
from hermes_rl.api.server import ApiSettings
from hermes_rl.serving import serve_loop
from hermes_rl.serving.display import ServeStats
from hermes_rl.serving.serve_loop import NO_MORE_ITEMS
from hermes_rl.store.database.store import Store
from tests.serving.counting_env import ITEMS, Ending, Streamed, says_it, slowly
from tests.serving.parts import draws, groups, serving, train, trainer, until
from tests.support.scripted_model import Status
from tests.support.token_servers import VLLMServer
from tests.support.trajectory_api import served


async def test_all_items_are_made_and_delivered_in_the_end(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, Ending) as run:
        done = await run.ended()
    assert await draws(store) == list(range(ITEMS))
    assert (done.ended, done.posted, done.left, done.cancelled) == (NO_MORE_ITEMS, ITEMS, 0, 0)


async def test_groups_arrive_as_a_trainer_needs_them(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    async with VLLMServer(says_it, weights="0") as model, serving(api, model.base_url, tmp_path, Ending) as run:
        await run.ended()
    sequences = [one.sequences[0] for group in await groups(store) for one in group.rollouts]
    assert all(sum(sequence.mask) and any(sequence.logprobs) for sequence in sequences)
    assert await store.lease("trainer", seconds=60) is not None


async def test_groups_without_a_score_are_delivered_too(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    async with (
        VLLMServer(lambda _: Status(500)) as model,
        serving(api, model.base_url, tmp_path, Ending, rollout_retries=0) as run,
    ):
        done = await run.ended()
    assert [group.withheld for group in await groups(store)] == ["too_few_scored"] * ITEMS
    assert done.tally.failures == {"endpoint/http_500": 2 * ITEMS}


async def test_no_more_begins_than_the_trainer_can_use_before_it_is_stale(
    tmp_path: Path, store: Store, api: str
) -> None:
    await trainer(store, batch_size=4, max_staleness=0)
    async with VLLMServer(says_it, weights="0") as model, serving(api, model.base_url, tmp_path) as run:
        await until(lambda: run.board.waiting == "more would be too old for the trainer" and waiting(store, 4))
        await asyncio.sleep(1.2)
        assert await draws(store) == [0, 1]
        await train(store, 1)
        await until(lambda: waiting(store, 4))
        assert await draws(store) == [0, 1, 2, 3]
        assert run.board.version == 1


async def test_groups_that_do_not_divide_the_batch_still_fill_it(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, batch_size=4, max_staleness=0)
    async with (
        VLLMServer(says_it, weights="0") as model,
        serving(api, model.base_url, tmp_path, group_size=3, max_num_workers=8),
    ):
        await until(lambda: waiting(store, 6))
        await asyncio.sleep(0.7)
    assert await draws(store) == [0, 1]


async def test_a_full_queue_is_waited_for(tmp_path: Path, store: Store) -> None:
    await trainer(store, batch_size=4, max_staleness=None)
    async with (
        served(store, ApiSettings(max_queued=8)) as url,
        VLLMServer(says_it, weights="0") as model,
        serving(url, model.base_url, tmp_path) as run,
    ):
        await until(lambda: run.board.waiting == "the queue is full" and waiting(store, 8))
        await asyncio.sleep(0.7)
        assert await draws(store) == [0, 1, 2, 3]
        await train(store, 1)
        await until(lambda: waiting(store, 8))
    assert await draws(store) == [0, 1, 2, 3, 4, 5]


async def test_nothing_begins_before_there_is_a_trainer(tmp_path: Path, store: Store, api: str) -> None:
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, Ending) as run:
        await until(lambda: run.board.waiting == "no trainer has registered yet")
        await asyncio.sleep(0.7)
        assert model.requests == 0
        await trainer(store, max_staleness=100)
        await run.ended()
    assert await draws(store) == list(range(ITEMS))


async def test_two_shards_make_every_draw_once_between_them(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    async with (
        VLLMServer(says_it) as model,
        serving(api, model.base_url, tmp_path, Ending, shards=2, shard=0) as one,
        serving(api, model.base_url, tmp_path, Ending, shards=2, shard=1) as other,
    ):
        assert [(await run.ended()).posted for run in (one, other)] == [ITEMS // 2, ITEMS // 2]
    assert await draws(store) == list(range(ITEMS))
    assert sorted(each.instance for each in await store.environments()) == ["0/2", "1/2"]


async def test_the_same_environment_served_twice_to_one_api_is_refused(tmp_path: Path, store: Store, api: str) -> None:
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path) as one:
        await until(lambda: one.board.state == "serving")
        async with serving(api, model.base_url, tmp_path) as other:
            with pytest.raises(ConfigError, match="another process owns the spool"):
                await other.ended()


async def test_a_wrong_token_ends_it_at_once(tmp_path: Path, store: Store) -> None:
    async with (
        served(store, ApiSettings(token="right")) as url,
        VLLMServer(says_it) as model,
        serving(url, model.base_url, tmp_path, rollout_server_token="wrong") as run,
    ):
        with pytest.raises(ApiError) as raised:
            await run.ended()
    assert raised.value.status == 401
    assert "wrong" not in str(raised.value)


async def test_the_token_is_read_from_where_the_setting_says(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVING_TOKEN", "right")
    await trainer(store, max_staleness=100)
    async with (
        served(store, ApiSettings(token="right")) as url,
        VLLMServer(says_it) as model,
        serving(url, model.base_url, tmp_path, Ending, rollout_server_token="env:SERVING_TOKEN") as run,
    ):
        assert (await run.ended()).posted == ITEMS


async def test_the_last_training_step_ends_it(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=0)
    async with VLLMServer(says_it, weights="0") as model, serving(api, model.base_url, tmp_path, total_steps=2) as run:
        await until(lambda: waiting(store, 4))
        for version in (1, 2):
            await train(store, version)
        done = await run.ended()
    assert (done.ended, done.version) == ("the policy is at version 2 of 2", 2)


async def test_steps_with_nothing_to_train_on_count(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=0)
    async with VLLMServer(says_it, weights="0") as model, serving(api, model.base_url, tmp_path, total_steps=2) as run:
        for _ in range(2):
            await until(lambda: waiting(store, 4))
            batch = await store.lease("trainer", seconds=60)
            assert batch is not None
            await store.ack(batch.id)
        done = await run.ended()
    assert (done.ended, done.version) == ("the trainer has taken 2 of 2 steps", 0)


async def test_a_limit_ends_it_and_is_named(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, token_limit=500) as run:
        done = await run.ended()
    assert done.ended.startswith("token_limit")
    assert len(await draws(store)) == done.tally.groups


async def test_an_error_of_the_authors_own_ends_it_after_what_is_in_flight_is_delivered(
    tmp_path: Path, store: Store, api: str
) -> None:
    class Broken(Streamed):
        async def get_next_item(self) -> Any:
            if self.taken == 2:
                raise ZeroDivisionError
            return await super().get_next_item()

    await trainer(store, max_staleness=100)
    async with (
        VLLMServer(slowly(0.3)) as model,
        serving(api, model.base_url, tmp_path, Broken) as run,
    ):
        with pytest.raises(ZeroDivisionError):
            await run.ended()
    assert await draws(store) == [0, 1]


async def test_an_error_in_a_display_hook_does_not_end_it(
    tmp_path: Path, store: Store, api: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Ending):
        async def add_rollouts_for_wandb(self, scored_data: dict[str, Any], item: Any = None) -> None:
            raise ZeroDivisionError

        async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
            raise ZeroDivisionError

    await trainer(store, max_staleness=100)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, Broken) as run:
        done = await run.ended()
    assert (done.ended, done.posted) == (NO_MORE_ITEMS, ITEMS)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert [line.split()[1] for line in warnings] == ["add_rollouts_for_wandb", "wandb_log"]


async def test_the_api_hears_of_it_while_an_item_takes_long(
    tmp_path: Path, store: Store, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Thoughtful(Streamed):
        async def get_next_item(self) -> Any:
            await asyncio.sleep(60)

    monkeypatch.setattr(serve_loop, "HEARTBEAT", 0.1)
    await trainer(store)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, Thoughtful) as run:
        await until(lambda: run.board.version == 0)
        [before] = await store.environments()

        async def is_heard() -> bool:
            [after] = await store.environments()
            return after.seen_at > before.seen_at and after.running == 6

        await until(is_heard)


async def test_metrics_of_the_time_since_the_last_line_are_written_when_the_version_moves(
    tmp_path: Path, store: Store, api: str
) -> None:
    await trainer(store, max_staleness=0)
    async with VLLMServer(says_it, weights="0") as model, serving(api, model.base_url, tmp_path) as run:
        for version in (1, 2):
            await until(lambda: waiting(store, 4))
            await train(store, version)
            await until(partial(is_at, run.board, version))
        await run.stopped()
    lines = [json.loads(line) for line in (tmp_path / "serve.metrics.jsonl").read_text().splitlines()]
    assert [line["serve/version"] for line in lines][:2] == [1, 2]
    groups = [line["train/groups"] for line in lines]
    # Groups of the last version that finish late count in the next line.
    assert groups[0] == 2 and groups[1] >= 2
    assert list(accumulate(groups)) == [line["serve/groups"] for line in lines]


def is_at(board: ServeStats, version: int) -> bool:
    return board.version == version


async def waiting(store: Store, rollouts: int) -> bool:
    return (await store.status()).total.waiting == rollouts

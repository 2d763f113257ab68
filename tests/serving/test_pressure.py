"""`serve` under pressure: engines that refuse, a policy that moves on, and an environment that is slow."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from hermes_rl.serving import serve_loop
from hermes_rl.serving.serve_loop import NO_MORE_ITEMS
from hermes_rl.store.database.store import Store
from tests.serving.counting_env import ITEMS, Ending, Streamed, number_asked, says_it, slowly
from tests.serving.parts import draws, groups, serving, train, trainer, until
from tests.support.scripted_model import Status
from tests.support.token_servers import Asked, TokenReply, TokenServer, VLLMServer

BOUND = 2


class Slow(Streamed):
    name = "slow"


class TwoTurns(Streamed):
    """Asks a second time."""

    async def next_user_message(self, item: Any, messages: list[Any], session: Any = None) -> str | None:
        return f"say {item['number']}" if len(messages) < 4 else None


async def test_an_engine_that_refuses_costs_no_rollout(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    model = VLLMServer(says_it)
    model.script = cast("Any", bounded(model))
    async with model, serving(api, model.base_url, tmp_path, Ending, concurrency="auto", max_num_workers=12) as run:
        done = await run.ended()
        assert "requests" in (run.board.engines or "")
    assert (done.ended, done.tally.failures) == (NO_MORE_ITEMS, {})
    assert await draws(store) == list(range(ITEMS))


async def test_limits_cuts_and_queues_are_in_the_metrics(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, Ending, concurrency="auto") as run:
        await run.ended()
    lines = [json.loads(line) for line in (tmp_path / "serve.metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["pressure/rollouts_limit"] >= 2
    assert {"pressure/requests_held", "pressure/cuts", "pressure/refusals"} <= lines[-1].keys()


async def test_rollouts_that_grow_too_old_in_flight_end_and_make_room(
    tmp_path: Path, store: Store, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_loop, "HEARTBEAT", 0.1)
    await trainer(store, batch_size=4, max_staleness=0)
    # The second question of each rollout would be asked after the policy has moved on.
    async with (
        VLLMServer(slowly(2.0), weights="0") as model,
        serving(api, model.base_url, tmp_path, TwoTurns, max_num_workers=1) as run,
    ):
        await until(lambda: model.open == 2)
        await store.set_version(5, by="trainer")
        await until(lambda: run.board.version == 5)
        await until(lambda: run.board.tally.groups >= 1)
        model.weights = "5"
        await until(lambda: run.board.tally.groups >= 2)
        done = await run.stopped()
    first = (await groups(store))[0]
    assert [str(one.failure) for one in first.rollouts] == ["framework/stale"] * 2
    assert done.tally.failures == {"framework/stale": 2}


async def test_an_environment_that_never_ends_its_rollouts_does_not_keep_another_from_training(
    tmp_path: Path, store: Store, api: str
) -> None:
    await trainer(store, batch_size=4, max_staleness=1)
    async with (
        VLLMServer(slowly(600.0), weights="0") as stuck,
        VLLMServer(says_it, weights="0") as model,
        serving(api, stuck.base_url, tmp_path / "slow", Slow, max_num_workers=32),
    ):
        await until(lambda: stuck.open >= 8)
        async with serving(api, model.base_url, tmp_path / "fast", Streamed, max_num_workers=32):
            for version in range(1, 4):
                await until(lambda: waiting(store, 4))
                await train(store, version)
                model.weights = str(version)
    trained = [tally for tally in await store.tallies() if tally.outcome == "trained"]
    assert sum(tally.rollouts for tally in trained) == 12


async def waiting(store: Store, rollouts: int) -> bool:
    return (await store.status()).total.waiting >= rollouts


def bounded(model: TokenServer) -> Any:
    def script(body: dict[str, Any]) -> TokenReply:
        asked: Asked = model.asked(body)
        assert number_asked(asked)
        return slowly(0.02)(asked) if model.open <= BOUND else Status(429)

    return script

"""A run that trains to its end whatever dies on the way, and one that fails and says so."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from hermes_rl.core.shutdown import StopSignal
from hermes_rl.training import trainer as trainer_module
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.trainer import COMPLETE, RunFailedError
from tests.api.client.running_api import running_api
from tests.training.training_run import Died, Run, fill

FOUR = range(10, 14)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "FIRST_RETRY_S", 0.001)


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    async with running_api(tmp_path / "store.db") as api:
        await fill(api, FOUR)
        yield Run(api, tmp_path)


async def test_batches_are_learned_from_in_their_order(run: Run) -> None:
    assert await run.start() == COMPLETE
    assert run.learned() == tuple(FOUR)


async def test_every_batch_is_acknowledged(run: Run) -> None:
    await run.start()
    status = await run.api.store.status()
    assert (status.total.waiting, status.total.leased) == (0, 0)


async def test_each_step_has_a_version_of_its_own(run: Run) -> None:
    await run.start()
    assert run.published.versions == [0, 1, 2, 3, 4]
    assert await run.api.store.version() == 4


async def test_a_run_that_is_complete_has_final_weights_that_exist(run: Run) -> None:
    await run.start()
    last = run.lineage.last
    assert last is not None and last.final
    assert last.state in run.engines.checkpoints


async def test_a_complete_run_started_again_trains_no_further(run: Run) -> None:
    await run.start()
    await fill(run.api, range(20, 22))
    assert await run.start() == COMPLETE
    assert run.learned() == tuple(FOUR)


async def test_only_the_newest_checkpoints_are_kept(run: Run) -> None:
    run.settings = run.settings.model_copy(update={"keep_checkpoints": 2})
    await run.start()
    assert len(run.engines.checkpoints) == 3
    assert [one.step for one in run.lineage.checkpoints if one.step not in run.lineage.deleted] == [3, 4, 4]


async def test_a_sampler_that_an_evaluation_holds_is_deleted_only_later(run: Run) -> None:
    run.settings = run.settings.model_copy(update={"keep_checkpoints": 1, "total_steps": 2})
    await run.start()
    held = next(one for one in run.lineage.checkpoints if one.step == 2)
    run.published.in_use = frozenset({held.sampler})
    run.settings = run.settings.model_copy(update={"total_steps": 3})
    await run.start()
    assert held.state in run.engines.checkpoints and held.sampler not in {one.sampler for one in run.engines.deleted}
    run.published.in_use = frozenset()
    run.settings = run.settings.model_copy(update={"total_steps": 4})
    await run.start()
    assert held.sampler in {one.sampler for one in run.engines.deleted}


async def test_a_step_that_fails_is_taken_again_from_the_checkpoint(run: Run) -> None:
    calls = count()

    def before(name: str) -> None:
        if name == "step" and next(calls) == 1:
            raise EngineError("the engine died")

    run.engines.before = before
    assert await run.start() == COMPLETE
    assert run.learned() == tuple(FOUR)
    assert run.published.versions == [0, 1, None, 1, 2, 3, 4]


async def test_a_step_that_always_fails_fails_the_run(run: Run) -> None:
    def before(name: str) -> None:
        if name == "step":
            raise EngineError("no memory")

    run.engines.before = before
    with pytest.raises(RunFailedError, match=r"step 1 failed 3 times: no memory"):
        await run.start()


async def test_what_asking_again_cannot_mend_fails_the_run_at_once(run: Run) -> None:
    calls = count(1)

    def before(name: str) -> None:
        if name == "open":
            next(calls)
            raise EngineError("wrong key", permanent=True)

    run.engines.before = before
    with pytest.raises(RunFailedError, match="wrong key"):
        await run.start()
    assert next(calls) == 2


async def test_a_batch_without_signal_is_acknowledged_and_leaves_the_weights(tmp_path: Path) -> None:
    async with running_api(tmp_path / "store.db") as api:
        await fill(api, range(10, 12), scores=(1.0, 1.0))
        await fill(api, range(12, 14))
        run = Run(api, tmp_path)
        assert await run.start() == COMPLETE
        assert run.learned() == (12, 13)
        assert run.metrics[1]["groups/zero_signal"] == 1
        status = await api.store.status()
        assert (status.total.waiting, status.total.leased) == (0, 0)


async def test_only_a_change_of_the_weights_makes_a_version(tmp_path: Path) -> None:
    async with running_api(tmp_path / "store.db") as api:
        await fill(api, range(10, 12), scores=(1.0, 1.0))
        await fill(api, range(12, 14))
        run = Run(api, tmp_path)
        await run.start()
        assert run.published.versions == [0, 1, 2]
        assert [run.metrics[step]["policy/version"] for step in range(1, 5)] == [0, 0, 1, 2]


async def test_a_run_without_any_signal_ends_with_its_first_weights_saved_once(tmp_path: Path) -> None:
    saved: list[str] = []
    async with running_api(tmp_path / "store.db") as api:
        await fill(api, FOUR, scores=(1.0, 1.0))
        run = Run(api, tmp_path)
        run.engines.before = saved.append
        assert await run.start() == COMPLETE
    # At the start, and at the end as the final checkpoint.
    assert saved == ["open", "save", "save_sampler", "save", "save_sampler"]
    assert [(one.step, one.version) for one in run.lineage.checkpoints] == [(step, 0) for step in (0, 1, 2, 3, 4, 4)]


async def test_weights_that_a_kept_checkpoint_shares_are_not_deleted(tmp_path: Path) -> None:
    async with running_api(tmp_path / "store.db") as api:
        await fill(api, range(10, 12))
        await fill(api, range(12, 14), scores=(1.0, 1.0))
        run = Run(api, tmp_path)
        run.settings = run.settings.model_copy(update={"keep_checkpoints": 1})
        await run.start()
    kept = [one for one in run.lineage.checkpoints if one.step not in run.lineage.deleted]
    assert [one.step for one in kept] == [2, 3, 4, 4]
    assert all(one.state in run.engines.checkpoints for one in kept)


async def test_a_batch_without_signal_is_acknowledged_before_the_next_checkpoint_is_due(tmp_path: Path) -> None:
    """Leased for a version that stays, it would count against what environments may start."""
    async with running_api(tmp_path / "store.db") as api:
        await fill(api, range(10, 11))
        await fill(api, range(11, 14), scores=(1.0, 1.0))
        run = Run(api, tmp_path)
        run.settings = run.settings.model_copy(update={"checkpoint_every": 20, "total_steps": 20, "max_staleness": 1})
        async with run.trainer() as trainer:
            running = asyncio.create_task(trainer.run(stop := StopSignal(5.0)))
            while trainer.progress.state != "waiting for a batch" or trainer.progress.step < 4:
                await asyncio.sleep(0.01)
            assert (await api.store.status()).capacity == 2 * run.settings.batch_size
            stop.request("SIGTERM")
            await running
    assert run.published.versions == [0, 1]
    assert [one.batches for one in run.lineage.checkpoints] == [(), (1, 2), (3,), (4,)]


async def test_a_run_told_to_stop_keeps_what_it_learned(run: Run) -> None:
    run.settings = TrainerSettings(base_url="http://engine", batch_size=2, total_steps=9, checkpoint_every=3)
    stop = StopSignal(5.0)
    running = asyncio.create_task(run.start(stop))
    while 4 not in run.metrics:
        await asyncio.sleep(0.01)
    stop.request("SIGTERM")
    assert await running == "SIGTERM"
    assert run.learned() == tuple(FOUR)
    assert run.published.versions == [0, 1, 2, 3, 4]


async def test_an_engine_lost_while_a_batch_is_waited_for_is_opened_again(run: Run) -> None:
    run.settings = run.settings.model_copy(update={"total_steps": 5})
    async with run.trainer() as trainer:
        running = asyncio.create_task(trainer.run(StopSignal(5.0)))
        while trainer.progress.state != "waiting for a batch" or trainer.progress.step < 4:
            await asyncio.sleep(0.01)
        trainer.engine_lost(EngineError("it forgot the policy"))
        while run.published.versions[-2:] != [None, 4]:
            await asyncio.sleep(0.01)
        await fill(run.api, range(20, 21), version=4)
        assert await running == COMPLETE
    assert run.learned() == (*FOUR, 20)


async def test_weights_that_were_rolled_back_leave_their_versions_behind(run: Run) -> None:
    """With a checkpoint every third step, versions 1 and 2 were seen by others before the death."""
    run.settings = run.settings.model_copy(update={"checkpoint_every": 3})
    calls = count()

    def before(name: str) -> None:
        if name == "step" and next(calls) == 2:
            raise Died

    run.engines.before = before
    with pytest.raises(Died):
        await run.start()
    assert run.published.versions == [0, 1, 2]
    run.engines.before = lambda name: None
    await run.start()
    assert run.learned() == tuple(FOUR)
    assert run.published.versions == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("every", "without_signal"), [(1, ()), (3, ()), (1, (1,)), (3, (1, 2))])
async def test_a_run_that_dies_at_any_moment_goes_on_where_it_stopped(
    tmp_path: Path, every: int, without_signal: tuple[int, ...]
) -> None:
    """It dies before and after each request to the API and before each of the engine's, once at each."""
    moments = 0
    async with running_api(tmp_path / "store.db") as api:
        for moment in count():
            tokens = range(10 * moment, 10 * moment + 4)
            for place, token in enumerate(tokens):
                scores = (1.0, 1.0) if place in without_signal else (0.0, 1.0)
                await fill(api, range(token, token + 1), version=await api.store.version(), scores=scores)
            folder = tmp_path / str(moment)
            folder.mkdir()
            run = Run(api, folder)
            run.settings = run.settings.model_copy(update={"checkpoint_every": every})
            if not await dies_at(run, moment):
                break
            moments += 1
            assert await run.start() == COMPLETE
            await holds(run, tuple(token for place, token in enumerate(tokens) if place not in without_signal))
    assert moments > 30


async def dies_at(run: Run, moment: int) -> bool:
    """Whether it died: a run that ends before the moment does not."""
    passed = count()

    def before(name: str) -> None:
        if next(passed) == moment:
            raise Died

    run.before = run.engines.before = before
    try:
        await run.start()
    except Died:
        died = True
    else:
        died = False
    run.before = run.engines.before = lambda name: None
    return died


async def holds(run: Run, tokens: tuple[int, ...]) -> None:
    """Each batch once and in order in the weights and in the lineage, none left over, no version twice."""
    assert run.learned() == tokens
    batches = [batch for checkpoint in run.lineage.checkpoints for batch in checkpoint.batches]
    assert sorted(set(batches)) == batches and len(batches) == run.settings.total_steps
    status = await run.api.store.status()
    assert (status.total.waiting, status.total.leased) == (0, 0)
    told = [version for version in run.published.versions if version is not None]
    assert told == sorted(told)

"""An environment that only evaluates: from the first version on, without a group, in nobody's way."""

import json
from pathlib import Path
from typing import Any

from hermes_rl.store.database.store import Store
from tests.serving.counting_env import says_it
from tests.serving.parts import serving, train, trainer, until
from tests.support.token_servers import VLLMServer


def evaluated(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics that are of an evaluation."""
    path = folder / "serve.metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if "eval/mean_reward" in line]


async def test_it_evaluates_the_first_version_and_then_by_its_steps_and_makes_no_group(
    tmp_path: Path, store: Store, api: str
) -> None:
    await trainer(store)
    only: dict[str, Any] = {"evaluation_only": True, "steps_per_eval": 2, "serve_dir": str(tmp_path / "run")}
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, **only) as run:
        await until(lambda: len(evaluated(tmp_path)) == 1)
        await train(store, 1)
        await until(lambda: run.board.version == 1)
        await train(store, 2)
        await until(lambda: len(evaluated(tmp_path)) == 2)
        done = await run.stopped()
    assert [line["eval/version"] for line in evaluated(tmp_path)] == [0, 2]
    assert (done.tally.groups, done.posted) == (0, 0)
    assert len(list((tmp_path / "run" / "evals").glob("counting-*/metrics.json"))) == 2


async def test_it_waits_for_a_trainer(tmp_path: Path, store: Store, api: str) -> None:
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, evaluation_only=True) as run:
        await until(lambda: run.board.waiting == "no trainer has registered yet")
        assert model.requests == 0
        await trainer(store)
        await until(lambda: len(evaluated(tmp_path)) == 1)


async def test_no_batch_waits_for_it(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, batch_size=4)
    only: dict[str, Any] = {"evaluation_only": True, "min_batch_allocation": 0.5, "inference_weight": 5.0}
    async with (
        VLLMServer(says_it) as model,
        serving(api, model.base_url, tmp_path, **only),
        serving(api, model.base_url, tmp_path) as other,
    ):
        await until(lambda: len(evaluated(tmp_path)) == 1 and other.board.delivery is not None)
        await until(lambda: other.board.delivery.posted >= 2)
        [evaluating, training] = sorted(await store.environments(), key=lambda one: one.instance, reverse=True)
        batch = await store.lease("trainer", seconds=60)
    assert (evaluating.instance, evaluating.minimum) == ("evaluation", 0.0)
    assert evaluating.connected
    assert batch is not None
    assert {group.environment for group in batch.groups} == {training.id}


async def test_an_evaluation_beside_training_says_its_version_too(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, steps_per_eval=2) as run:
        await until(lambda: run.board.version == 0)
        await train(store, 3)
        await until(lambda: evaluated(tmp_path))
    assert [line["eval/version"] for line in evaluated(tmp_path)] == [3]

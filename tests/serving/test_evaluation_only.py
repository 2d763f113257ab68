"""An environment that only evaluates: from the first version on, without a group, in nobody's way."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hermes_rl.store.database.store import Store
from hermes_rl.training.live_policy import SamplingPolicy
from tests.serving.counting_env import MODEL, says_it
from tests.serving.parts import serving, train, trainer, until
from tests.support.inference import Inference, inference
from tests.support.scripted_sampler import ScriptedSampler
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
    assert [line["eval/version_due"] for line in evaluated(tmp_path)] == [0, 2]
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
        model.weights = "step-3"
        await train(store, 3)
        await until(lambda: evaluated(tmp_path))
    [line] = evaluated(tmp_path)
    assert (line["eval/version_due"], line["eval/version"], line["eval/version_mixed"]) == (3, 3, 0)


@asynccontextmanager
async def moving_policy(*, loses_old: bool) -> AsyncIterator[Inference]:
    """A trainer's inference server whose weights move on at the first held-out item, and lose the old ones or not."""
    policy = SamplingPolicy(patience=5)

    def script(ids: Sequence[int], *_: object) -> Sequence[int]:
        if policy.version == 0:
            policy.publish(1, ScriptedSampler(script))
            if loses_old:
                policy.drop(0)
        return (*MODEL.tokenizer.encode("1000", add_special_tokens=False), MODEL.stop_ids[0])

    async with inference(ScriptedSampler(script), version=0, policy=policy, context_tokens=4096) as server:
        yield server


async def test_an_evaluation_samples_from_one_version_though_the_policy_moves_on(
    tmp_path: Path, store: Store, api: str
) -> None:
    await trainer(store)
    async with (
        moving_policy(loses_old=False) as model,
        serving(api, f"{model.url}/v1", tmp_path, evaluation_only=True) as run,
    ):
        await until(lambda: run.board.evaluated)
        assert model.policy.version == 1
    assert run.board.evaluated.startswith("of version 0: ")
    [line] = evaluated(tmp_path)
    assert (line["eval/version"], line["eval/version_low"], line["eval/version_high"]) == (0, 0, 0)
    assert run.env.last_evaluation["policy"]["mixed"] is False


async def test_an_evaluation_whose_version_was_lost_says_so(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store)
    async with (
        moving_policy(loses_old=True) as model,
        serving(api, f"{model.url}/v1", tmp_path, evaluation_only=True, max_eval_workers=1) as run,
    ):
        await until(lambda: run.board.evaluated)
    assert run.board.evaluated.startswith("of versions 0 to 1 (mixed): ")
    [line] = evaluated(tmp_path)
    assert "eval/version" not in line
    assert (line["eval/version_low"], line["eval/version_high"], line["eval/version_mixed"]) == (0, 1, 1)

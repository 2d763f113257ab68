"""Every code example of the seeds as a file, by `hermes-rl VERB FILE` and by `python FILE VERB`, without a change.

The files are in fixtures/. The model is scripted and does what each prompt asks. Files that override a collect method
give half of the reward there, so a score of 1.0 shows that their own code made the rollout.
"""

import asyncio
import json
from pathlib import Path

import pytest

from hermes_rl.store.database.store import Store
from tests.seeds.parts import FIXTURES, MODEL, SeedModel, hermes_rl, openai_flags, python, records, serve
from tests.serving.parts import groups, train, trainer, until
from tests.support.token_servers import logprob_of
from tests.support.trajectory_api import served

FILES = sorted(FIXTURES.glob("*.py"))
WAYS = ("hermes-rl", "python")
# The third seed's recipes: they count correct answers, and make tokens with the tokenizer.
RECIPES = {"base_env_chat", "base_env_managed"}
# Loading the tokenizer costs a process seconds, so only these are served by `python FILE serve`.
SERVED_BY_PYTHON = ("base_env_managed", "guide_env")

# Each starts a process that imports much.
pytestmark = pytest.mark.timeout(200)


def endpoint(file: Path, model: SeedModel, tokenizer: Path) -> tuple[str, ...]:
    """Plain chat, except where the file takes its tokens from a managed server."""
    named = ("--env.tokenizer_name", str(tokenizer)) if file.stem in RECIPES else ()
    return (*openai_flags(model.base_url, "vllm" if file.stem == "base_env_managed" else "openai"), *named)


async def run(way: str, file: Path, verb: str, *flags: str, folder: Path) -> None:
    if way == "python":
        await python(file, verb, *flags, folder=folder)
    else:
        await hermes_rl(file, verb, *flags)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_process(file: Path, way: str, model: SeedModel, tokenizer: Path, tmp_path: Path) -> None:
    output = tmp_path / "output.jsonl"
    flags = ("--env.total_steps", "1", "--env.group_size", "2", "--env.use_wandb", "false")
    saved = ("--env.data_path_to_save_groups", str(output))
    await run(way, file, "process", *flags, *saved, *endpoint(file, model, tokenizer), folder=tmp_path)
    assert [record["scores"] for record in records(output)] == [[1.0, 1.0]]


async def test_rollouts_of_the_base_class_go_on_where_chats_are_tokenized(
    model: SeedModel, tokenizer: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output.jsonl"
    flags = ("--env.total_steps", "1", "--env.use_wandb", "false", "--env.data_path_to_save_groups", str(output))
    named = ("--env.tokenizer_name", str(tokenizer), *openai_flags(model.base_url))
    await hermes_rl(FIXTURES / "group_super_env.py", "process", *flags, *named)
    assert records(output)[0]["scores"] == [1.0] * 4


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_evaluate(file: Path, way: str, model: SeedModel, tokenizer: Path, tmp_path: Path) -> None:
    flags = ("--env.data_dir_to_save_evals", str(tmp_path / "results"), "--env.use_wandb", "false")
    await run(way, file, "evaluate", *flags, *endpoint(file, model, tokenizer), folder=tmp_path)
    metrics = json.loads((tmp_path / "results" / "metrics.json").read_text())["metrics"]
    assert metrics["eval/percent_correct" if file.stem in RECIPES else "eval/mean_reward"] == 1.0


def serve_flags(api: str, model: SeedModel, tokenizer: Path, folder: Path) -> tuple[str, ...]:
    return (
        *("--env.rollout_server_url", api, "--env.tokenizer_name", str(tokenizer), "--env.total_steps", "1"),
        *("--env.group_size", "2", "--env.ensure_scores_are_not_same", "false", "--env.max_num_workers", "2"),
        *("--env.use_wandb", "false", "--env.serve_dir", str(folder / "serve")),
        *openai_flags(model.base_url, "vllm"),
    )


async def check_served(store: Store) -> None:
    """The first group is trained on, with the logprob of each token that the model sampled."""
    group = (await groups(store))[0]
    assert (group.scores, group.withheld) == ([1.0, 1.0], None)
    for rollout in group.rollouts:
        [sequence] = rollout.sequences
        columns = zip(sequence.tokens, sequence.logprobs, sequence.mask, strict=True)
        sampled = [(token, logprob) for token, logprob, kept in columns if kept]
        assert sampled[-1][0] == MODEL.stop_ids[0]
        assert all(logprob == logprob_of(token) for token, logprob in sampled)


@pytest.mark.parametrize("file", [file for file in FILES if file.stem != "base_env_chat"], ids=lambda file: file.stem)
async def test_serve(file: Path, model: SeedModel, tokenizer: Path, store: Store, tmp_path: Path) -> None:
    await trainer(store, batch_size=2)
    async with served(store) as api:
        running = asyncio.create_task(serve(file, *serve_flags(api, model, tokenizer, tmp_path)))
        await until(lambda: came(store, running))
        await train(store, 1)
        told = await running
    assert told["ended"] == "the policy is at version 1 of 1"
    await check_served(store)


@pytest.mark.parametrize("name", SERVED_BY_PYTHON)
async def test_serve_by_python(name: str, model: SeedModel, tokenizer: Path, store: Store, tmp_path: Path) -> None:
    await trainer(store, batch_size=2)
    async with served(store) as api:
        flags = serve_flags(api, model, tokenizer, tmp_path)
        running = asyncio.create_task(python(FIXTURES / f"{name}.py", "serve", *flags, "--json", folder=tmp_path))
        await until(lambda: came(store, running))
        await train(store, 1)
        told = json.loads(await running)
    assert told["ended"] == "the policy is at version 1 of 1"
    await check_served(store)


async def test_tokens_made_from_text_are_never_trained_on(
    model: SeedModel, tokenizer: Path, store: Store, tmp_path: Path
) -> None:
    await trainer(store, batch_size=2)
    async with served(store) as api:
        flags = serve_flags(api, model, tokenizer, tmp_path)
        running = asyncio.create_task(serve(FIXTURES / "base_env_chat.py", *flags))
        await until(lambda: running.done() or model.requests >= 2)
        assert await store.lease("trainer", seconds=60) is None
        await store.set_version(1, by="trainer")
        told = await running
    assert told["scored"] >= 2
    assert not any(rollout.sequences for group in await groups(store) for rollout in group.rollouts)


async def came(store: Store, running: asyncio.Task[object]) -> bool:
    """Whether the first group is in the store, or will never be."""
    return running.done() or bool(await groups(store))

"""append_log: held-out items are new, only appending keeps the log, and the effect alone scores."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.learning.shuffled_append_log_env import ShuffledAppendLogEnv
from environments.append_log_env import (
    EXAMPLES,
    HELD_OUT_WORDINGS,
    HELD_OUT_WORDS,
    WORDINGS,
    WORDS,
    AppendLogEnv,
    log_before,
    run,
)
from hermes_rl import AgentResult, Reward
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import run_script

ITEM = {"word": "apple", **asdict(WORDINGS[0])}


@pytest.fixture
async def env() -> AsyncIterator[AppendLogEnv]:
    config, _ = AppendLogEnv.config_init()
    env = AppendLogEnv(config, [NO_MODEL.model_copy(update={"health_check": False})])
    async with env.opened():
        yield env


async def test_no_word_and_no_wording_of_an_evaluation_is_trained_on(env: AppendLogEnv) -> None:
    train, held_out = env.train_items(), env.eval_items()
    for part in ("word", "append"):
        assert {item[part] for item in train}.isdisjoint(item[part] for item in held_out)
    assert (len(train), len(held_out)) == (len(WORDS) * len(WORDINGS), 200)


def test_the_words_of_worked_examples_are_in_no_item() -> None:
    assert {word for _, word in EXAMPLES}.isdisjoint((*WORDS, *HELD_OUT_WORDS))


async def test_the_last_worked_example_writes_in_the_wording_of_the_item(env: AppendLogEnv) -> None:
    *_, asked, answered, prompt = (str(said["content"]) for said in env.initial_messages(ITEM))
    assert (asked, prompt) == ("Echo moon into log.txt", "Echo apple to the end of log.txt")
    assert "echo moon > log.txt" in answered


async def test_the_first_items_of_an_evaluation_have_all_wordings_alike(env: AppendLogEnv) -> None:
    first = env.eval_items()[:40]
    assert Counter(item["append"] for item in first) == {wording.append: 10 for wording in HELD_OUT_WORDINGS}


@pytest.mark.parametrize(
    ("command", "score"),
    [
        ("echo apple >> log.txt", 1.0),
        ("printf apple >> log.txt", 1.0),
        ("cat log.txt > old; echo apple >> old; mv old log.txt", 1.0),
        ("echo apple > log.txt", 0.0),
        ("echo pear >> log.txt", 0.0),
        ("echo apple >> log.txt; touch more.txt", 0.0),
        ("rm log.txt; mkfifo log.txt", 0.0),
        (f"printf '{log_before('pear')}apple\n' > log.txt", 0.0),
    ],
)
async def test_the_log_must_have_its_lines_and_the_new_one(env: AppendLogEnv, command: str, score: float) -> None:
    rollout, _ = await run_script(env, ITEM, [run(command)])
    assert (rollout.score, rollout.failure) == (score, None)


def test_every_log_holds_something_else() -> None:
    words = (*WORDS, *HELD_OUT_WORDS)
    assert len({log_before(word) for word in words}) == len(words)


async def test_the_control_deals_out_the_rewards_of_a_group_and_leaves_evaluations_alone() -> None:
    config, _ = ShuffledAppendLogEnv.config_init()
    env = ShuffledAppendLogEnv(config, [NO_MODEL])

    async def dealt(*scores: float) -> list[Any]:
        results = [AgentResult(messages=[], reward=Reward(score)) for score in scores]
        return [reward.score for reward in await env.compute_group_rewards(ITEM, results)]  # type: ignore[union-attr]

    scores = [float(number) for number in range(20)]
    shuffled = await dealt(*scores)
    assert shuffled != scores
    assert sorted(shuffled) == scores
    assert await dealt(1.0) == [1.0]

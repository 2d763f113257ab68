"""examples/plain_text_env.py: no tools, one turn, and a score that counts plain characters."""

from collections.abc import AsyncIterator

import pytest

from examples.plain_text_env import HELD_OUT, PROMPTS, PlainTextEnv
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import run_script


@pytest.fixture
async def env() -> AsyncIterator[PlainTextEnv]:
    config, _ = PlainTextEnv.config_init()
    env = PlainTextEnv(config, [NO_MODEL.model_copy(update={"health_check": False})])
    async with env.opened():
        yield env


@pytest.mark.parametrize(
    ("said", "score"),
    [("plain words 7", 1.0), ("", 0.0), ("\ufffd\x14", 0.0), ("ab\x14\ufffd", 0.5), ("é", 0.0), ("a.\n1", 0.5)],
)
async def test_the_score_is_the_share_of_letters_digits_and_spaces(env: PlainTextEnv, said: str, score: float) -> None:
    rollout, _ = await run_script(env, PROMPTS[0], [said])
    assert rollout.score == score


async def test_a_rollout_is_one_turn_without_tools_or_sandbox(env: PlainTextEnv) -> None:
    rollout, _ = await run_script(env, PROMPTS[0], ["one", "two"])
    assert (rollout.turns_used, rollout.tool_uses, env.tools.pool.live) == (1, (), 0)
    assert env.group_tools() == ([], set())


def test_no_prompt_of_an_evaluation_is_trained_on() -> None:
    assert not set(PROMPTS) & set(HELD_OUT)

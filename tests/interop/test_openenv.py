"""Environments behind an OpenEnv server, played over its WebSocket."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from hermes_rl.cli.environment_command import resolve_environment
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Rollout, StopReason
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import run_script
from tests.interop.contract_server import BREAK, DIE, HANG, INVALID, make_app

PROGRAM = Path(__file__).with_name("contract_server.py")
SETTINGS = {"rollout_retries": 0, "terminal_backend": "local", "train_seeds": 3, "eval_seeds": 2}


def environment(reference: str, **settings: Any) -> HermesAgentBaseEnv:
    kind = resolve_environment(reference)
    config, _ = kind.config_init()
    return kind(
        config.model_copy(update={**SETTINGS, **settings}), [NO_MODEL.model_copy(update={"health_check": False})]
    )


@asynccontextmanager
async def served(*, tools: bool = True, **settings: Any) -> AsyncIterator[HermesAgentBaseEnv]:
    async with TestServer(make_app(tools=tools)) as server:
        env = environment(f"openenv:{server.make_url('')}", **settings)
        async with env.opened():
            yield env


async def played(env: HermesAgentBaseEnv, *guesses: int, tool: str = "guess") -> Rollout:
    item = (env.train_items() or [])[2]
    steps: list[Any] = [(tool, {"number": number}) for number in guesses]
    return (await run_script(env, item, [*steps, "I give up"])).rollout


async def test_the_tools_of_the_server_are_those_of_the_model() -> None:
    async with served() as env:
        rollout = await played(env, 1)
    assert [message["content"] for message in rollout.messages[-3:]] == ["", "wrong", "I give up"]


async def test_done_ends_the_rollout() -> None:
    async with served() as env:
        rollout = await played(env, 2, 5)
    assert (rollout.turns_used, rollout.stop_reason, rollout.score) == (1, StopReason.ENDED, 1.0)


@pytest.mark.parametrize(("how", "score"), [("sum", 0.5), ("last", 1.0), ("max", 1.0)])
async def test_a_score_is_the_sum_the_last_or_the_highest_of_the_rewards(how: str, score: float) -> None:
    async with served(episode_score=how) as env:
        assert (await played(env, 0, 1, 2)).score == score


async def test_an_agent_that_does_nothing_gets_nothing() -> None:
    async with served() as env:
        assert (await played(env)).score == 0.0


async def test_a_server_without_tools_gets_its_actions_by_one() -> None:
    async with served(tools=False) as env:
        rollout = await played(env, 1, 2, tool="act")
    assert (rollout.messages[2]["content"], rollout.score) == ("wrong", 0.75)


async def test_items_are_seeds_and_prompts_what_the_server_shows() -> None:
    async with served() as env:
        prompts = [env.format_prompt(item) for item in env.eval_items()]
    assert prompts == ["Guess, seed 3.", "Guess, seed 4."]


async def test_an_action_that_the_server_calls_invalid_is_told_to_the_model() -> None:
    async with served() as env:
        rollout = await played(env, INVALID, 2)
    assert (rollout.tool_uses[0].error, rollout.score) == ("99 failed", 1.0)


@pytest.mark.parametrize(
    ("number", "cause"), [(DIE, "package_died"), (HANG, "package_hung"), (BREAK, "package_raised")]
)
async def test_a_server_that_fails_leaves_the_rollout_without_a_score(number: int, cause: str) -> None:
    async with served(server_timeout=0.5) as env:
        rollout = await played(env, number)
    assert (rollout.score, str(rollout.failure)) == (None, f"environment/{cause}")


async def test_a_server_can_be_a_program() -> None:
    command = [sys.executable, str(PROGRAM), "{port}"]
    env = environment("openenv:", server_command=command)
    async with env.opened():
        assert (await played(env, 2)).score == 1.0


async def test_a_program_that_ends_is_reported_with_its_output() -> None:
    env = environment("openenv:", server_command=[sys.executable, "-c", "print('no module'); exit(3)", "{port}"])
    with pytest.raises(ConfigError, match="no module"):
        async with env.opened():
            pass


async def test_a_server_that_is_not_there_is_reported_at_the_start() -> None:
    with pytest.raises(ConfigError, match="cannot be reached"):
        async with environment("openenv:http://127.0.0.1:9").opened():
            pass


def test_a_reference_that_is_not_a_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a URL"):
        resolve_environment("openenv:echo")

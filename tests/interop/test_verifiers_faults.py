"""What goes wrong in a verifiers package's process leaves rollouts without a score, and is counted by cause."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.cli.environment_command import resolve_environment
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Rollout
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import run_script
from tests.interop.stub_package import install_stub


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    install_stub()


def faulty(**settings: Any) -> HermesAgentBaseEnv:
    kind = resolve_environment("verifiers:faulty")
    config, _ = kind.config_init()
    settings = {"rollout_retries": 0, "terminal_backend": "local", **settings}
    return kind(config.model_copy(update=settings), [NO_MODEL.model_copy(update={"health_check": False})])


@pytest.fixture
async def env() -> AsyncIterator[HermesAgentBaseEnv]:
    env = faulty(package_timeout=1.0)
    async with env.opened():
        yield env


async def played(env: HermesAgentBaseEnv, *answers: str) -> Rollout:
    item = (env.train_items() or [])[0]
    return (await run_script(env, item, answers)).rollout


def cause(rollout: Rollout) -> str:
    assert rollout.score is None
    return str(rollout.failure)


async def test_user_turns_come_from_the_package(env: HermesAgentBaseEnv) -> None:
    rollout = await played(env, "a", "b", "stop")
    said = [message["content"] for message in rollout.messages if message["role"] == "user"]
    assert (said, rollout.score, rollout.components) == (["item 0", "you said a", "you said b"], 1.0, {"turns": 3.0})


async def test_reasoning_reaches_the_package_as_the_endpoint_sent_it(env: HermesAgentBaseEnv) -> None:
    rollout = await played(env, "<think>hm</think>a", "stop")
    assert rollout.messages[2]["content"] == "you said <think>hm</think>a"


async def test_what_the_package_prints_harms_nothing(env: HermesAgentBaseEnv) -> None:
    assert (await played(env, "print", "stop")).score == 1.0


async def test_a_crash_of_the_process_is_no_score_and_the_next_rollout_works(env: HermesAgentBaseEnv) -> None:
    died = await played(env, "die")
    assert cause(died) == "environment/package_died"
    assert died.failure is not None
    assert "exit code 3" in died.failure.message
    assert "a last word" in died.failure.message
    assert (await played(env, "stop")).score == 1.0


async def test_a_process_that_hangs_is_replaced(env: HermesAgentBaseEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_rl.interop.verifiers.process.PING_TIMEOUT", 0.2)
    assert cause(await played(env, "hang")) == "environment/package_hung"
    assert (await played(env, "stop")).score == 1.0


async def test_an_answer_that_is_not_json_ends_the_process(env: HermesAgentBaseEnv) -> None:
    assert cause(await played(env, "garbage")) == "environment/package_died"


@pytest.mark.parametrize("said", ["raise", "log", "nan"])
async def test_a_reward_that_fails_is_no_score(env: HermesAgentBaseEnv, said: str) -> None:
    assert cause(await played(env, said, "stop")) == "environment/package_raised"


async def test_an_answer_that_our_loop_cannot_show_is_refused_by_name(env: HermesAgentBaseEnv) -> None:
    rollout = await played(env, "tool")
    assert cause(rollout) == "environment/package_unsupported"
    assert rollout.failure is not None
    assert "env_response answered with tool" in rollout.failure.message


async def test_every_fifth_item_is_held_out(env: HermesAgentBaseEnv) -> None:
    assert [item["answer"] for item in env.eval_items()] == ["4", "9"]


async def test_a_package_that_does_not_load_is_told_at_the_start() -> None:
    with pytest.raises(ConfigError, match="no dataset"):
        async with faulty(package_args={"broken": True}).opened():
            pass


def test_a_package_that_is_not_installed_names_the_command() -> None:
    with pytest.raises(ConfigError, match="hermes-rl env install other"):
        resolve_environment("verifiers:other")

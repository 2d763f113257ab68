"""Packages of verifiers 0.3.1 (v0) and 0.4.0 (v1): their own loop and ours give equal rewards on recorded rollouts."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from hermes_rl import APIServerConfig
from hermes_rl.cli.environment_command import resolve_environment
from hermes_rl.core.trajectory import Rollout
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import run_script
from hermes_rl.interop.verifiers import packages
from hermes_rl.interop.verifiers.environment import VerifiersEnv
from tests.interop.recorded_rollouts import V0, V1
from tests.interop.streaming_model import make_app
from tests.support.scripted_model import Calls, Reply, ScriptedModel, Text

pytestmark = [pytest.mark.long, pytest.mark.slow]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIXTURES = HERE / "fixtures" / "verifiers"


def made(name: str, folder: Path, fixtures: list[str]) -> Path:
    """An interpreter with an engine environment's packages, and the packages of the fixtures."""
    script = ROOT / ("scripts/interop_environment" if name == "verifiers-v0" else "scripts/engine_environment")
    engine = Path(subprocess.check_output([script, name], text=True, timeout=2200).strip())
    subprocess.run([engine / "bin" / "python", "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    [site] = engine.glob("lib/python*/site-packages")
    own = folder / site.relative_to(engine)
    (own / "engine.pth").write_text("\n".join(map(str, [site, *(FIXTURES / fixture for fixture in fixtures)])))
    return folder


@pytest.fixture(scope="module")
def v0(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made("verifiers-v0", tmp_path_factory.mktemp("v0") / "venv", list(V0))


@pytest.fixture(scope="module")
def v1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made("verifiers", tmp_path_factory.mktemp("v1") / "venv", list(V1))


@pytest.fixture(scope="module")
def uv() -> Path:
    """The program that scripts/environments.sh installs with."""
    command = ["bash", "-c", 'source scripts/environments.sh && uv "$0"', sys.executable]
    return Path(subprocess.check_output(command, cwd=ROOT, text=True, timeout=300).strip())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))


def installed(name: str, venv: Path) -> None:
    """As `hermes-rl env install` leaves a package, in an environment that is already there."""
    (packages.packages_home() / name).mkdir(parents=True)
    packages.venv_of(name).symlink_to(venv)
    packages.record(name, name, {"kind": name[-2:], "verifiers": ""})


@asynccontextmanager
async def opened(name: str, venv: Path, **settings: Any) -> AsyncIterator[VerifiersEnv]:
    installed(name, venv)
    kind = resolve_environment(f"verifiers:{name}")
    config, _ = kind.config_init()
    settings = {"rollout_retries": 0, "terminal_backend": "local", "held_out_every": 1000, **settings}
    env = kind(config.model_copy(update=settings), [NO_MODEL.model_copy(update={"health_check": False})])
    assert isinstance(env, VerifiersEnv)
    async with env.opened():
        yield env


def judged(rollout: Rollout) -> tuple[float | None, dict[str, float]]:
    return rollout.score, dict(rollout.components)


@pytest.fixture(scope="module")
def own_v0(v0: Path) -> dict[str, list[dict[str, Any]]]:
    """What verifiers' own loop makes of the recorded rollouts."""
    answer = subprocess.run(
        [v0 / "bin" / "python", HERE / "own_v0.py"],
        input=json.dumps(V0),
        env={**os.environ, "NO_KEY": "none"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    outputs: dict[str, list[dict[str, Any]]] = json.loads(answer.stdout)
    return outputs


@pytest.mark.parametrize("package", V0)
async def test_rewards_of_v0_packages_are_those_of_verifiers(
    package: str, v0: Path, own_v0: dict[str, list[dict[str, Any]]]
) -> None:
    async with opened(package, v0) as env:
        rows = env.train_items() or []
        done = [await run_script(env, rows[row], steps) for row, steps in V0[package]]
        ours = [judged(one.rollout) for one in done]
        if env.host.about["group_rewards"]:
            rewards = await env.compute_group_rewards(rows[0], [one.result for one in done]) or []
            ours = [(one.score, dict(one.components)) for one in rewards]
    assert ours == [(one["reward"], one["metrics"]) for one in own_v0[package]]


@pytest.mark.timeout(960)  # two minutes of CPU, since the evaluation installs its program
async def test_rewards_of_v1_packages_are_those_of_verifiers(v1: Path, uv: Path, tmp_path: Path) -> None:
    ours: dict[str, Any] = {}
    prompts: dict[str, str] = {}
    for package, answers in V1.items():
        async with opened(package, v1) as env:
            for row, answer in zip(env.train_items() or [], answers, strict=True):
                messages = env.initial_messages(row)
                prompts[messages[-1]["content"]] = answer
                ours[f"{package}/{row['idx']}"] = judged((await run_script(env, row, [answer])).rollout)
    async with TestServer(make_app(prompts)) as server:
        command = [
            str(v1 / "bin" / "python"),
            str(HERE / "own_v1.py"),
            str(server.make_url("/v1")),
            str(tmp_path / "out"),
        ]
        # The evaluation installs its chat program with uv.
        path = f"{uv.parent}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "OPENAI_API_KEY": "none", "HOME": str(tmp_path), "PATH": path}
        process = await asyncio.create_subprocess_exec(*command, *V1, env=variables, stdout=asyncio.subprocess.DEVNULL)
        async with asyncio.timeout(900):
            assert await process.wait() == 0
    own: dict[str, Any] = {}
    for file in (tmp_path / "out").rglob("traces.jsonl"):
        package = file.relative_to(tmp_path / "out").parts[0]
        for line in file.read_text().splitlines():
            [trace] = json.loads(line)["traces"]
            rewards = {name: one["score"] * one["weight"] for name, one in trace["rewards"].items()}
            own[f"{package}/{trace['task']['data']['idx']}"] = (sum(rewards.values()), {**trace["metrics"], **rewards})
    assert ours == own


def guessing(request: dict[str, Any]) -> Reply:
    return Text(str(9 - len(request["messages"]) // 2))


async def test_a_group_of_a_package_with_turns_is_played_through_an_endpoint(v0: Path) -> None:
    installed("guess-v0", v0)
    kind = resolve_environment("verifiers:guess-v0")
    config, _ = kind.config_init()
    async with ScriptedModel(guessing) as model:
        endpoint = APIServerConfig(base_url=model.base_url, model_name="scripted", timeout=20)
        env = kind(config.model_copy(update={"group_size": 2, "terminal_backend": "local"}), [endpoint])
        async with env.opened():
            group = await env.collect_group((env.train_items() or [])[0])
    scores = [one.score for one in group.rollouts]
    assert scores == [0.1, 0.1]


async def test_the_price_of_an_exception_in_a_reward_is_no_score(v0: Path) -> None:
    async with opened("basket-v0", v0) as env:
        row = {**(env.train_items() or [])[0], "answer": "not a price"}
        rollout = (await run_script(env, row, ["4"])).rollout
    assert (rollout.score, str(rollout.failure)) == (None, "environment/package_raised")


async def test_a_score_that_needs_lost_state_is_refused(v0: Path) -> None:
    async with opened("guess-v0", v0) as env:
        row = (env.train_items() or [])[3]
        finished = await run_script(env, row, ["5", "3"])
        finished.result.messages = list(finished.result.messages)
        with pytest.raises(Exception, match="not in the record"):
            await env.host.ask("score", rollout="another", item=row, messages=finished.result.messages, prompt_length=1)


async def test_settings_of_a_taskset_reach_it(v1: Path) -> None:
    async with opened("settings-v1", v1, package_args={"size": 3, "task": {"tolerance": 2}}) as env:
        rows = env.train_items() or []
        assert (len(rows), (await run_script(env, rows[0], ["2"])).rollout.score) == (3, 1.0)


async def test_tools_of_a_package_are_called_with_what_the_model_wrote(v0: Path) -> None:
    def play(request: dict[str, Any]) -> Reply:
        if request["messages"][-1]["role"] == "tool":
            return Text(request["messages"][-1]["content"])
        return Calls([("add", '{"a": 2, "b": 2}')])

    installed("addition-v0", v0)
    kind = resolve_environment("verifiers:addition-v0")
    config, _ = kind.config_init()
    async with ScriptedModel(play) as model:
        endpoint = APIServerConfig(base_url=model.base_url, model_name="scripted", timeout=20)
        env = kind(config.model_copy(update={"group_size": 1, "terminal_backend": "local"}), [endpoint])
        async with env.opened():
            group = await env.collect_group((env.train_items() or [])[2])
    assert (group.rollouts[0].score, group.rollouts[0].components["add_calls"]) == (1.0, 1.0)

"""An exported environment under verifiers 0.4.0: its own `vf-eval` runs it, and the rewards are the environment's."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from examples.plain_text_env import PROMPTS, PlainTextEnv
from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import run_script
from hermes_rl.interop.trainers.verifiers_export import export_taskset
from tests.interop.streaming_model import make_app

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PLAIN_TEXT = ROOT / "examples" / "plain_text_env.py"
ENVIRONMENT_DEADLINE_S, PROGRAM_DEADLINE_S = 2200.0, 900.0
# Of different scores: 1, 0.5, 0 and what a model says at all.
ANSWERS = ["word", "na!!", "!!!!", "Hello there", "a?", "...x", "Oslo", "??"]


def test_a_package_names_the_environment_and_its_settings(tmp_path: Path) -> None:
    home = export_taskset(tmp_path, "plain-text-v1", str(PLAIN_TEXT), {"max_token_length": 4})
    source = (home / "plain_text_v1" / "__init__.py").read_text()
    compile(source, "package", "exec")
    assert repr(str(PLAIN_TEXT)) in source
    assert '{"max_token_length": 4}' in source
    assert 'name = "plain-text-v1"' in (home / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", ["Plain", "plain_text", "../x", "plain-"])
def test_what_is_no_package_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="package name"):
        export_taskset(tmp_path, name, "plain_text")


def test_an_existing_package_is_not_overwritten(tmp_path: Path) -> None:
    export_taskset(tmp_path, "one-v1", "plain_text")
    with pytest.raises(ConfigError, match="exists"):
        export_taskset(tmp_path, "one-v1", "plain_text")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With verifiers, and for what hermes-rl needs beside it the packages of the trainers' environment."""
    made = [
        Path(subprocess.check_output(command, text=True, timeout=ENVIRONMENT_DEADLINE_S).strip())
        for command in (
            [str(ROOT / "scripts" / "engine_environment"), "verifiers"],
            [str(ROOT / "scripts" / "interop_environment"), "trainers"],
        )
    ]
    folder = tmp_path_factory.mktemp("verifiers") / "venv"
    subprocess.run([made[0] / "bin" / "python", "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    sites = [next(each.glob("lib/python*/site-packages")) for each in made]
    own = folder / sites[0].relative_to(made[0])
    (own / "packages.pth").write_text("\n".join(map(str, [ROOT / "src", *sites])))
    return folder / "bin" / "python"


@pytest.fixture
async def ours(tmp_path: Path) -> list[float | None]:
    """What the environment says of the answers."""
    env = PlainTextEnv(PlainTextEnv.config_init()[0], [NO_MODEL])
    async with env.opened():
        pairs = zip(PROMPTS, ANSWERS, strict=True)
        return [(await run_script(env, item, [answer])).rollout.score for item, answer in pairs]


async def under_verifiers(python: Path, tmp_path: Path, what: str) -> str:
    """What the program prints last; its traces are in tmp_path/out."""
    home = export_taskset(tmp_path, "plain-text-v1", str(PLAIN_TEXT))
    async with TestServer(make_app(dict(zip(PROMPTS, ANSWERS, strict=True)))) as server:
        url = str(server.make_url("/v1"))
        command = [*map(str, (python, HERE / "verifiers_program.py", what, url, "plain-text-v1", tmp_path / "out"))]
        variables = {**os.environ, "OPENAI_API_KEY": "none", "HOME": str(tmp_path), "PYTHONPATH": str(home)}
        process = await asyncio.create_subprocess_exec(*command, env=variables, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(PROGRAM_DEADLINE_S):
            said, _ = await process.communicate()
    assert process.returncode == 0
    return said.decode().splitlines()[-1]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_vf_eval_gives_an_exported_environment_its_own_rewards(
    python: Path, ours: list[float | None], tmp_path: Path
) -> None:
    assert len(set(ours)) > 3
    await under_verifiers(python, tmp_path, "eval")
    episodes = [
        json.loads(line) for file in (tmp_path / "out").rglob("traces.jsonl") for line in file.read_text().splitlines()
    ]
    assert {trace_of(each)["task"]["data"]["idx"]: reward_of(each) for each in episodes} == dict(enumerate(ours))
    for episode in episodes:
        trace = trace_of(episode)
        assert not trace["errors"]
        assert trace["info"]["hermes_rl"]["turns"] == 1
        # verifiers recorded the call, which is where prime-rl reads its tokens.
        assert any(ANSWERS[trace["task"]["data"]["idx"]] in json.dumps(node) for node in trace["nodes"])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_an_env_server_plays_the_tasks_that_a_client_sends(
    python: Path, ours: list[float | None], tmp_path: Path
) -> None:
    assert json.loads(await under_verifiers(python, tmp_path, "serve")) == ours


def trace_of(episode: dict[str, Any]) -> dict[str, Any]:
    [trace] = episode["traces"]
    return dict(trace)


def reward_of(episode: dict[str, Any]) -> float:
    rewards = trace_of(episode)["rewards"]
    return float(sum(each["score"] * each["weight"] for each in rewards.values()))

"""An environment written to the seed's guide runs unchanged, as a script in a checkout and by hermes-rl."""

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.environment.loading.loader import load_environment
from tests.rollout.test_rollout import writes_the_number
from tests.support.scripted_model import ScriptedModel

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURE = REPOSITORY / "tests" / "fixtures" / "seed_env.py"


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(writes_the_number) as model:
        yield model


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """An author's checkout, with the file in a folder `environments` that has nothing of hermes-agent."""
    (tmp_path / "environments").mkdir()
    shutil.copy(FIXTURE, tmp_path / "environments" / "my_env.py")
    return tmp_path


def command_of(way: str) -> list[str]:
    if way == "script":
        return [sys.executable, "environments/my_env.py"]
    return [sys.executable, "-m", "hermes_rl"]


async def run(way: str, mode: str, checkout: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    import asyncio

    command = command_of(way)
    arguments = [mode, *flags] if way == "script" else [mode, "environments/my_env.py", *flags]
    return await asyncio.to_thread(
        subprocess.run, [*command, *arguments], cwd=checkout, capture_output=True, text=True, timeout=100, check=False
    )


def endpoint(model: ScriptedModel) -> list[str]:
    return [
        "--openai.base_url", model.base_url, "--openai.model_name", "scripted",
        "--openai.server_type", "openai", "--openai.health_check", "false",
    ]  # fmt: skip


@pytest.mark.parametrize("way", ["script", "hermes-rl"])
async def test_process_as_the_guide_shows_it(way: str, model: ScriptedModel, checkout: Path) -> None:
    done = await run(
        way, "process", checkout, "--env.total_steps", "4", "--env.group_size", "1", "--env.use_wandb", "false",
        "--env.data_path_to_save_groups", "output.jsonl", *endpoint(model),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (checkout / "output.jsonl").read_text().splitlines()]
    assert [record["scores"] for record in records] == [[1.0]] * 4
    metrics = json.loads((checkout / "output.metrics.jsonl").read_text())
    assert metrics["train/mean_reward"] == 1.0
    assert metrics["train/tool_errors_count"] == 0


@pytest.mark.parametrize("way", ["script", "hermes-rl"])
async def test_evaluate_as_the_guide_shows_it(way: str, model: ScriptedModel, checkout: Path) -> None:
    done = await run(
        way, "evaluate", checkout, "--env.eval_size", "4", "--env.data_dir_to_save_evals", "results", *endpoint(model)
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((checkout / "results" / "metrics.json").read_text())
    samples = [json.loads(line) for line in (checkout / "results" / "samples.jsonl").read_text().splitlines()]
    assert report["metrics"] == {"eval/mean_reward": 1.0}
    assert [sample["reward"] for sample in samples] == [1.0] * 4


def test_the_import_check_of_the_guide(checkout: Path) -> None:
    check = [sys.executable, "-c", "from environments.my_env import MyEnv; print('OK')"]
    done = subprocess.run(check, cwd=checkout, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("OK\n", 0), done.stderr


def test_the_seeded_shuffle_splits_the_same_way_each_time() -> None:
    import asyncio
    import random

    def split() -> list[Any]:
        environment = load_environment(str(FIXTURE))
        config, endpoints = environment.config_init()
        for one in endpoints:
            one.health_check = False
        env = environment(config, endpoints)

        async def items() -> list[Any]:
            async with env.opened():
                return list(env.eval_items())

        return asyncio.run(items())

    random.seed(1)
    before = random.getstate()
    first = split()
    assert random.getstate() == before
    assert split() == first


def test_the_names_of_atroposlib_are_served_when_it_is_absent(tmp_path: Path) -> None:
    file = tmp_path / "atropos_style_env.py"
    imports = (
        "from atroposlib.envs.base import BaseEnvConfig, ScoredDataGroup, ScoredDataItem\n"
        "from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerBaseline\n"
        "from atroposlib.type_definitions import Item\n"
    )
    file.write_text(imports + FIXTURE.read_text())
    environment = load_environment(str(file))
    _, (server,) = environment.config_init()
    assert server.model_name == "default"


def test_loading_leaves_no_alias_behind_for_others(tmp_path: Path) -> None:
    before = set(sys.modules)
    load_environment(str(FIXTURE))
    assert {name for name in set(sys.modules) - before if name.startswith(("environments", "atroposlib"))} == set()

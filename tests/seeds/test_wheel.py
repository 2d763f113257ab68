"""A file of the seeds from an installed wheel, where no checkout can be imported."""

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from hermes_rl.store.database.store import Store
from tests.seeds.parts import FIXTURES, SeedModel, openai_flags, records
from tests.seeds.test_files import came, check_served, serve_flags
from tests.seeds.test_guide import REPOSITORY
from tests.serving.parts import train, trainer, until
from tests.support.trajectory_api import served


def ran(*words: str | Path, folder: Path) -> str:
    hidden = ("PYTHON", "VIRTUAL_ENV", "PIP_CONSTRAINT")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    variables["HERMES_HOME"] = str(folder / "home")
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, and with the dependencies of this one but not its checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    ran(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, folder=REPOSITORY)
    [wheel] = folder.glob("*.whl")
    home = folder / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    ran(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, folder=folder)
    [site] = (home / "lib").glob("python*/site-packages")
    # A path in a .pth file is only searched: the .pth files in it, which name the checkout, are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


@pytest.mark.timeout(300)
async def test_files_are_evaluated_from_an_installed_wheel(installed: Path, model: SeedModel, tmp_path: Path) -> None:
    guide, trajectory = FIXTURES / "guide_env.py", FIXTURES / "trajectory_env.py"
    for folder, words in (
        ("python", (installed / "python", guide, "evaluate")),
        ("hermes-rl", (installed / "hermes-rl", "evaluate", trajectory)),
    ):
        flags = ("--env.data_dir_to_save_evals", folder, "--env.use_wandb", "false")
        await asyncio.to_thread(ran, *words, *flags, *openai_flags(model.base_url), folder=tmp_path)
        metrics = json.loads((tmp_path / folder / "metrics.json").read_text())["metrics"]
        assert metrics["eval/mean_reward"] == 1.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["python", "hermes-rl"])
async def test_files_are_served_from_an_installed_wheel(
    way: str, installed: Path, model: SeedModel, tokenizer: Path, store: Store, tmp_path: Path
) -> None:
    file = FIXTURES / "base_env_managed.py"
    words = (installed / way, file, "serve") if way == "python" else (installed / way, "serve", file)
    await trainer(store, batch_size=2)
    async with served(store) as api:
        flags = serve_flags(api, model, tokenizer, tmp_path)
        running = asyncio.create_task(asyncio.to_thread(ran, *words, *flags, "--json", folder=tmp_path))
        await until(lambda: came(store, running))
        await train(store, 1)
        told = json.loads(await running)
    assert told["ended"] == "the policy is at version 1 of 1"
    await check_served(store)


@pytest.mark.timeout(300)
async def test_files_run_from_an_installed_wheel(installed: Path, model: SeedModel, tmp_path: Path) -> None:
    guide, trajectory = FIXTURES / "guide_env.py", FIXTURES / "trajectory_env.py"
    flags = ("--env.total_steps", "1", "--env.group_size", "1", "--env.use_wandb", "false")
    for words in (
        (installed / "python", guide, "process", "--env.data_path_to_save_groups", "python.jsonl"),
        (installed / "hermes-rl", "process", trajectory, "--env.data_path_to_save_groups", "hermes-rl.jsonl"),
    ):
        await asyncio.to_thread(ran, *words, *flags, *openai_flags(model.base_url), folder=tmp_path)
    assert records(tmp_path / "python.jsonl")[0]["scores"] == [1.0]
    assert records(tmp_path / "hermes-rl.jsonl")[0]["scores"] == [1.0]
    places = "import atroposlib, hermes_rl; print(atroposlib.__spec__.origin, hermes_rl.__file__)"
    origin, _, package = ran(installed / "python", "-c", places, folder=tmp_path).strip().partition(" ")
    assert origin == "hermes-rl"
    assert Path(package).is_relative_to(installed.parent)

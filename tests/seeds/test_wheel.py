"""A file of the seeds from an installed wheel, where no checkout can be imported."""

import asyncio
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.seeds.parts import FIXTURES, SeedModel, openai_flags, records
from tests.seeds.test_guide import REPOSITORY


def ran(*words: str | Path, folder: Path) -> str:
    hidden = ("PYTHON", "VIRTUAL_ENV", "PIP_CONSTRAINT")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
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

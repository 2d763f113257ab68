"""Files written for hermes-agent run as scripts where only the wheel of hermes-rl is installed."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.seeds.idioms.test_idioms import FILES, script
from tests.support.scripted_model import ScriptedModel

ROOT = Path(__file__).parents[2]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A fresh environment with the wheel; its dependencies are those of this one, without our editable installation."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    home = tmp_path / "env"
    venv.create(home, symlinks=True)
    [site] = home.glob("lib/python*/site-packages")
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


async def run(python: Path, *words: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = await asyncio.to_thread(
        subprocess.run,
        [python, *words],
        cwd=python.parents[2],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_file_of_hermes_agent_runs_from_the_wheel(python: Path) -> None:
    folder = python.parents[2] / "environments"
    folder.mkdir()
    shutil.copy(FILES / "file_tasks_env.py", folder / "my_env.py")
    where = "import atroposlib, hermes_rl; print(atroposlib.__spec__.origin, hermes_rl.__file__)"
    origin, _, package = (await run(python, "-c", where)).strip().partition(" ")
    assert origin == "hermes-rl"
    assert Path(package).is_relative_to(python.parents[1])
    assert await run(python, "-c", "from environments.my_env import FileTasksEnv; print('OK')") == "OK\n"
    async with ScriptedModel(script) as model:
        endpoint = ["--openai.base_url", model.base_url, "--openai.model_name", "scripted"]
        groups = ["--env.data_path_to_save_groups", "output.jsonl"]
        await run(python, "environments/my_env.py", "process", *endpoint, *groups)
    records = [json.loads(line) for line in (folder.parent / "output.jsonl").read_text().splitlines()]
    assert sorted(record["scores"] for record in records) == [[0.5, 0.5], [1.0, 1.0]]

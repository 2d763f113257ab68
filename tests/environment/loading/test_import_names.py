"""The seeds' module names are importable in any Python process, and never instead of a real module."""

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from _hermes_rl_imports import MODULES
from tests.orchestration.discovery.writing import written

ROOT = Path(__file__).resolve().parents[3]


def answer(program: str, folder: Path, *options: str, path: str = "") -> Any:
    """What a fresh Python in this folder prints as JSON."""
    done = subprocess.run(
        [sys.executable, *options, "-c", f"import json, sys\n{program}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_start_of_python_loads_nothing_and_adds_one_finder(tmp_path: Path) -> None:
    program = """
before = list(sys.modules)
try:
    import no_such_module
except ModuleNotFoundError:
    pass
names = [getattr(finder, "__name__", "") for finder in sys.meta_path]
print(json.dumps([[name for name in before if "hermes" in name], [n for n in sys.modules if "hermes" in n], names]))
"""
    before, after, finders = answer(program, tmp_path)
    assert (before, after) == ([], [])
    assert finders.count("HermesRLImports") == 1
    assert finders[-1] == "HermesRLImports"


def test_every_name_is_importable(tmp_path: Path) -> None:
    program = f"import importlib; print(json.dumps([importlib.import_module(name).__name__ for name in {[*MODULES]}]))"
    assert answer(program, tmp_path) == [*MODULES]


def test_the_pth_file_knows_every_root() -> None:
    known = re.search(r"in (\(.*?\)):", (ROOT / "src/_hermes_rl_imports.pth").read_text())
    assert known
    assert ast.literal_eval(known[1]) == tuple(sorted({name.partition(".")[0] for name in MODULES}))


def test_the_classes_are_the_same_under_every_name(tmp_path: Path) -> None:
    program = """
import atroposlib.envs.base, environments.agent_loop, environments.hermes_base_env
from atroposlib.envs.server_handling.server_manager import APIServerConfig
import hermes_rl
print(json.dumps([
    atroposlib.envs.base.BaseEnvConfig in hermes_rl.HermesAgentEnvConfig.__mro__,
    environments.hermes_base_env.HermesAgentBaseEnv is hermes_rl.HermesAgentBaseEnv,
    environments.agent_loop.AgentResult is environments.hermes_base_env.AgentResult is hermes_rl.AgentResult,
    APIServerConfig is hermes_rl.APIServerConfig,
]))
"""
    assert answer(program, tmp_path) == [True] * 4


def test_star_imports_give_the_names_of_the_module_only(tmp_path: Path) -> None:
    program = "before = set(dir())\nfrom environments.tool_context import *\nprint(json.dumps([*set(dir()) - before]))"
    assert sorted(answer(program, tmp_path)) == ["ToolContext", "before"]


REAL = {"atroposlib/__init__.py": "WHOSE = 'theirs'\n", "atroposlib/envs/__init__.py": ""}
WHOSE = """
def whose(name):
    try:
        module = __import__(name, fromlist=["x"])
    except ModuleNotFoundError as error:
        return str(error)
    return "ours" if module.__spec__.origin == "hermes-rl" else "theirs"
"""


@pytest.mark.parametrize("first", ["", "import hermes_rl.environment\n"])
def test_a_real_atroposlib_is_never_mixed_with_ours(first: str, tmp_path: Path) -> None:
    written(tmp_path, REAL)
    names = ["atroposlib", "atroposlib.envs", "atroposlib.envs.base", "atroposlib.type_definitions"]
    program = f"{first}{WHOSE}print(json.dumps([whose(name) for name in {names}]))"
    assert answer(program, tmp_path) == [
        "theirs",
        "theirs",
        "No module named 'atroposlib.envs.base'",
        "No module named 'atroposlib.type_definitions'",
    ]


def test_a_real_module_that_a_later_finder_has_comes_first(tmp_path: Path) -> None:
    # As of a package that is installed editable by a finder of its own.
    written(tmp_path, {"elsewhere/model_tools.py": ""})
    program = f"""
from importlib.machinery import PathFinder
class Later:
    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, ["elsewhere"]) if name == "model_tools" else None
sys.meta_path.append(Later())
{WHOSE}print(json.dumps([whose("model_tools"), whose("toolset_distributions")]))
"""
    assert answer(program, tmp_path) == ["theirs", "ours"]


@pytest.mark.parametrize("package", [{"environments/__init__.py": ""}, {}])
def test_a_users_folder_of_environments_keeps_its_modules_and_gets_ours(
    package: dict[str, str], tmp_path: Path
) -> None:
    mine = "from environments.hermes_base_env import HermesAgentBaseEnv\nclass MyEnv(HermesAgentBaseEnv): ...\n"
    written(tmp_path, {**package, "environments/my_env.py": mine, "environments/agent_loop.py": "LOOP = 'mine'\n"})
    program = f"from environments.my_env import MyEnv\n{WHOSE}"
    names = [f"environments.{name}" for name in ("my_env", "agent_loop", "hermes_base_env", "tool_context", "nothing")]
    assert answer(f"{program}print(json.dumps([whose(name) for name in {names}]))", tmp_path) == [
        "theirs",
        "theirs",
        "ours",
        "ours",
        "No module named 'environments.nothing'",
    ]


def test_a_checkout_of_hermes_agent_is_not_mixed_with_ours(tmp_path: Path) -> None:
    written(tmp_path, {"environments/__init__.py": "", "environments/hermes_base_env.py": ""})
    program = f"{WHOSE}print(json.dumps([whose('environments.hermes_base_env'), whose('environments.patches')]))"
    assert answer(program, tmp_path) == ["theirs", "No module named 'environments.patches'"]


def test_without_the_pth_file_the_names_come_with_hermes_rl(tmp_path: Path) -> None:
    # From an archive, as in a zipapp; -S leaves out site-packages, and so the .pth file.
    archive = tmp_path / "hermes_rl.zip"
    with zipfile.ZipFile(archive, "w") as written_to:
        for file in ("_hermes_rl_imports.py", "hermes_rl/__init__.py", "hermes_rl/version.py"):
            written_to.write(ROOT / "src" / file, file)
        for folder in ("hermes_rl/environment/__init__.py", "hermes_rl/environment/compat/__init__.py"):
            written_to.write(ROOT / "src" / folder, folder)
        written_to.write(
            ROOT / "src/hermes_rl/environment/compat/patches.py", "hermes_rl/environment/compat/patches.py"
        )
    program = f"""{WHOSE}
before = whose("environments.patches")
import hermes_rl.environment
from environments.patches import apply_patches
print(json.dumps([before, whose("environments.patches"), type(sys.meta_path[-1]).__name__]))
"""
    assert answer(program, tmp_path, "-S", path=str(archive)) == [
        "No module named 'environments'",
        "ours",
        "AliasFinder",
    ]


def test_the_adapter_to_atroposlib_does_not_take_ours_for_it(tmp_path: Path) -> None:
    program = """
from hermes_rl.environment.atropos_adapter.adapter import _import_atroposlib
try:
    _import_atroposlib()
except Exception as error:
    print(json.dumps(str(error)))
"""
    assert "needs the atropos extra" in answer(program, tmp_path)

"""No interpreter that we start runs a file of the current folder because it is named like a module."""

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hermes_rl.core.child_python import python_command
from hermes_rl.orchestration.doctor import installed
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.validation.determinism_check import outline_in_subprocess
from tests.support.environments import FileEnv

SOURCE = Path(__file__).parents[2] / "src" / "hermes_rl"
SHELLS = {"/bin/sh", "sh", "bash"}
# Uses of sys.executable outside `python_command`, and why each is right.
OWN_USES = {
    "agent/harnesses/interpreters.py": "the path of an interpreter for `python_command`",
    "core/child_python.py": "the helper itself",
    "core/process_guard.py": "imports nothing of the package; passes -I",
    "interop/verifiers/packages.py": "makes a virtual environment; passes -I",
    "orchestration/doctor/installed.py": "shows the path",
    "training/engines/skyrl/virtualenv.py": "the path of an interpreter for `python_command`",
    "training/engines/skyrl/inside/hermes_skyrl/api.py": "runs in the engine's environment; passes -P",
}


def traps(folder: Path, *names: str) -> Path:
    """Files named like modules that leave a trace when they are run; returns where."""
    trace = folder / "ran"
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(trace)!r}, 'a').write({name!r})\n")
    return trace


def test_doctor_does_not_run_a_file_named_like_a_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trace = traps(tmp_path, "yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installed, "PACKAGES", {"yaml": "tokens"})
    installed.package_imports()
    assert not trace.exists()


async def test_validate_does_not_run_a_file_named_like_a_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trace = traps(tmp_path, "asyncio")
    monkeypatch.chdir(tmp_path)
    await outline_in_subprocess(FileEnv, HermesAgentEnvConfig())
    assert not trace.exists()


@pytest.mark.parametrize("options", [["-c", "import pip"], ["-m", "pip", "--version"]])
@pytest.mark.parametrize("isolated", [False, True])
def test_a_child_does_not_run_a_file_of_the_current_folder(tmp_path: Path, options: list[str], isolated: bool) -> None:
    trace = traps(tmp_path, "pip")
    subprocess.run(python_command(*options, isolated=isolated), cwd=tmp_path, capture_output=True, check=False)
    assert not trace.exists()


def test_python_dash_m_is_the_command(tmp_path: Path) -> None:
    trace = traps(tmp_path, "click", "asyncio", "yaml")
    command = [sys.executable, "-m", "hermes_rl", "--version"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 0
    assert not trace.exists()


def _is_sys_executable(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "executable" and getattr(node.value, "id", None) == "sys"


def _starts_unsafely(node: ast.AST) -> bool:
    """Whether this is a literal command line with -c or -m for an interpreter, without -P or -I before it."""
    if not isinstance(node, ast.List | ast.Tuple):
        return False
    words = [element.value if isinstance(element, ast.Constant) else None for element in node.elts]
    at = next((place for place, word in enumerate(words) if word in {"-c", "-m"}), 0)
    return at > 0 and words[0] not in SHELLS and words[at - 1] not in {"-P", "-I"}


def test_every_interpreter_is_started_with_the_helper() -> None:
    uses, unsafe = Counter[str](), []
    for path in SOURCE.rglob("*.py"):
        name = str(path.relative_to(SOURCE))
        for node in ast.walk(ast.parse(path.read_text())):
            uses[name] += _is_sys_executable(node)
            if _starts_unsafely(node):
                unsafe.append(f"{name}:{getattr(node, 'lineno', 0)}")
    assert {name for name, count in uses.items() if count} == set(OWN_USES)
    assert not unsafe

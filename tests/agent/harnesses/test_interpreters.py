"""Which Python an agent gets, and that a copied one runs from any path."""

import subprocess
import sys
from pathlib import Path

from hermes_rl.agent.harnesses.harness import Agent
from hermes_rl.agent.harnesses.interpreters import Interpreter, copy_python, find_python

VERSION = sys.version_info[:2]


def test_a_copied_python_runs_without_the_one_that_it_was_copied_from(tmp_path: Path) -> None:
    original = Interpreter(sys.executable, VERSION, Path(sys.base_prefix))
    copy_python(original, tmp_path / "copy")
    seen = (tmp_path / "copy").rename(tmp_path / "elsewhere")
    code = "import ctypes, json, sqlite3, ssl, sys; print(sys.prefix, *sys.version_info[:2])"
    said = subprocess.check_output([seen / "bin" / "python", "-I", "-c", code], text=True, env={}, cwd="/")
    assert said.split() == [str(seen), *map(str, VERSION)]
    program = (seen / "bin" / f"python{VERSION[0]}.{VERSION[1]}").read_bytes()
    assert f"{sys.base_prefix}/lib\0".encode() not in program, "it would use the library of the original"
    library = seen / "lib" / f"python{VERSION[0]}.{VERSION[1]}"
    assert (library / "json").is_dir()
    assert not (library / "test").exists(), "the tests of Python are a third of it"


def test_a_python_of_the_system_is_preferred() -> None:
    agent = Agent("one", "1", "", "", "", "true", python=((3, 0), (4, 0)))
    assert find_python(agent).in_sandboxes

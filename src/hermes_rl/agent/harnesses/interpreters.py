"""The Python that an agent is installed for: one of the system, or another one of this machine, which is copied.

A sandbox without an image sees /usr, so an agent uses an interpreter in /usr/bin where it can. One that is elsewhere,
such as pyenv's or uv's, would be missing there: the agent's folder gets a copy of it, which runs from any path.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.agent.harnesses.harness import Agent
from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import ConfigError

# Where pyenv and uv keep the versions that they install.
MANAGED = ("~/.pyenv/versions", "~/.local/share/uv/python")
# A wheel needs none of these, and they are most of an installation's size.
NOT_COPIED = shutil.ignore_patterns("test", "__pycache__", "config-*", "site-packages", "idlelib", "*.a")
_ABOUT = "import sys; print(*sys.version_info[:2], sys.base_prefix)"


@dataclass(frozen=True, slots=True)
class Interpreter:
    path: str
    version: tuple[int, int]
    prefix: Path

    @property
    def in_sandboxes(self) -> bool:
        return self.path.startswith("/usr/bin/")

    def __str__(self) -> str:
        return self.path


def find_python(agent: Agent) -> Interpreter:
    """An interpreter that the agent can use, one of the system first."""
    lowest, limit = agent.python
    for path in _candidates():
        found = _about(path)
        if found is not None and lowest <= found.version < limit:
            return found
    needed = f"at least {lowest[0]}.{lowest[1]} and below {limit[0]}.{limit[1]}"
    raise ConfigError(
        f"{agent.name} needs a Python {needed}, in /usr/bin, of pyenv or of uv; install one, for instance with "
        f"`uv python install {lowest[0]}.{lowest[1]}`"
    )


def copy_python(python: Interpreter, folder: Path) -> None:
    """Copy an interpreter and its standard library to a folder, so that it runs from wherever the folder is seen."""
    name = f"python{python.version[0]}.{python.version[1]}"
    libraries = folder / "lib"
    shutil.copytree(python.prefix / "lib" / name, libraries / name, symlinks=True, ignore=NOT_COPIED)
    (libraries / name / "site-packages").mkdir()
    binaries = folder / "bin"
    binaries.mkdir()
    _copy_program(python.prefix / "bin" / name, binaries / name, python.prefix)
    for link in ("python3", "python"):
        (binaries / link).symlink_to(name)
    for library in sorted((python.prefix / "lib").glob("libpython*.so*")):
        shutil.copy2(library, libraries / library.name, follow_symlinks=False)
    found = _about(str(binaries / name))
    if found is None or not found.prefix.samefile(folder):
        raise ConfigError(f"the Python in {python.prefix} does not run from another folder; use uv's or the system's")


def _copy_program(source: Path, target: Path, prefix: Path) -> None:
    """Copy a program. If it looks for its library in `prefix`, the copy looks beside itself."""
    there, here = f"{prefix / 'lib'}\0".encode(), b"$ORIGIN/../lib\0"
    program = source.read_bytes()
    if len(here) <= len(there):
        program = program.replace(there, here.ljust(len(there), b"\0"))
    target.write_bytes(program)
    target.chmod(0o755)


def _candidates() -> Iterator[str]:
    names = ("python3", "python3.13", "python3.12", "python3.11")
    yield from (f"/usr/bin/{name}" for name in names)
    yield sys.executable
    for folder in MANAGED:
        yield from (str(path) for path in sorted(Path(folder).expanduser().glob("*/bin/python3"), reverse=True))


def _about(python: str) -> Interpreter | None:
    if not os.access(python, os.X_OK):
        return None
    command = python_command("-c", _ABOUT, python=python, isolated=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        return None
    major, minor, prefix = done.stdout.rstrip("\n").split(" ", 2)
    return Interpreter(python, (int(major), int(minor)), Path(prefix))

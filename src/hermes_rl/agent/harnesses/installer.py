"""Installs an agent into its folder with pip, and with npm if it needs it, on this machine, over the network.

A folder with an agent's name is complete, and readable by every user of this machine, since each sandbox that root
starts has its own user. The folder is relocatable: it is used at another path than it was created at. One process
installs at a time, and removes what a killed one left unfinished.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from hermes_rl.agent.harnesses.harness import NODE, Agent
from hermes_rl.agent.harnesses.interpreters import copy_python, find_python
from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.file_lock import acquire_within
from hermes_rl.core.paths import images_home
from hermes_rl.core.pip_hashes import ADVICE, mismatch

ProgressCallback = Callable[[int, str], object]
"""Receives the number of finished STEPS and the current activity, twice a second."""
STEPS = 4
DEADLINE_S = 3600.0
_REPORT_EVERY_S = 0.5
_OUTPUT_TAIL = 2_000
# A package from the index, or from a URL.
_PACKAGE_LINE = re.compile(r"^(?:Collecting|Processing) (\S+)", re.MULTILINE)
_UNPACKING = "Installing collected packages"
_AGAIN = "run `hermes-rl agent install {}`"


def agents_home() -> Path:
    """Where agents are installed: next to the images, since the users of sandboxes need access to both."""
    return images_home().with_name("agents")


def installed_folder(agent: Agent) -> Path | None:
    folder = agents_home() / agent.folder_name
    return folder if folder.is_dir() else None


def install(agent: Agent, report: ProgressCallback = lambda *_: None) -> Path:
    """Install the agent unless it is installed, and return its folder."""
    folder = agents_home() / agent.folder_name
    if folder.is_dir():
        return folder
    partial_folder = folder.with_name(f"{folder.name}.part")
    try:
        _make_accessible(folder.parent)
        with _exclusive(folder.parent, report) as lock:
            if folder.is_dir():
                return folder
            shutil.rmtree(partial_folder, ignore_errors=True)
            try:
                _make_accessible(partial_folder)
                _install_pip(agent, partial_folder, report, lock)
                if agent.npm:
                    _install_npm(agent, partial_folder, report, lock)
                _run(["chmod", "-R", "a+rX,go-w", str(partial_folder)], "making its files readable to sandboxes", lock)
                partial_folder.rename(folder)
                report(STEPS, "done")
            finally:
                shutil.rmtree(partial_folder, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {partial_folder.parent}: {error}; set HERMES_HOME to use another folder"
        ) from error
    return folder


@contextmanager
def _exclusive(folder: Path, report: ProgressCallback) -> Iterator[int]:
    """Hold the folder's lock. Child processes inherit it, so that it is held as long as orphans write."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        waiting = partial(report, 0, "another process installs an agent; waiting for it")
        if not acquire_within(lock, DEADLINE_S, poll_seconds=_REPORT_EVERY_S, on_wait=waiting):
            raise ConfigError(f"another process has held {folder} for an hour; stop it and try again")
        yield lock
    finally:
        os.close(lock)


def _make_accessible(folder: Path) -> None:
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(exist_ok=True)
        missing.chmod(0o711)


def _install_pip(agent: Agent, partial_folder: Path, report: ProgressCallback, lock: int) -> None:
    python = find_python(agent)
    report(0, f"an environment for {python}")
    if python.in_sandboxes:
        _run(
            python_command("-m", "venv", "--without-pip", str(partial_folder), python=python.path, isolated=True),
            "making its Python environment",
            lock,
        )
    else:
        copy_python(python, partial_folder)
    inside = str(partial_folder / "bin" / "python")
    if find_spec("pip") is not None:
        command = python_command("-m", "pip", "--python", inside, "install", "--disable-pip-version-check")
        command += ["--no-input", "--progress-bar", "off"]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--python", inside, "--compile-bytecode"]
    else:
        raise ConfigError("installing an agent needs pip or uv: run `python -m ensurepip` first")

    def report_output(output: str) -> None:
        packages = _PACKAGE_LINE.findall(output)
        if _UNPACKING in output:
            report(2, f"unpacking and compiling {max(len(packages), len(agent.pip))}")
        else:
            last = packages[-1].rpartition("/")[2] if packages else ""
            known = "" if agent.with_dependencies else f" of {len(agent.pip)}"
            report(1, f"fetching {len(packages)}{known} {last}".strip())

    hashed = bool(agent.pip) and all("--hash=" in package for package in agent.pip)
    requirements = partial_folder / "requirements.txt"
    requirements.write_text("".join(f"{package}\n" for package in agent.pip))
    exact = [] if agent.with_dependencies else ["--no-deps"]
    command += [*exact, *(["--require-hashes"] if hashed else []), "-r", str(requirements)]
    try:
        _run(command, "installing its packages", lock, report_output)
    except ConfigError as error:
        if str(error).endswith(ADVICE):
            raise
        raise ConfigError(
            f"{error}\nThe packages come from the index that pip is set to (`pip config list`). Check that this "
            f"machine reaches it, then {'start' if agent.with_dependencies else _AGAIN.format(agent.name)} again"
        ) from None


def _install_npm(agent: Agent, partial_folder: Path, report: ProgressCallback, lock: int) -> None:
    """Install what the lock names, with the Node.js and the npm that pip installed. No package's script runs."""
    packages = json.loads(agent.npm)["packages"]
    report(3, f"fetching its packages with npm, {len(packages) - 1} at most")
    (partial_folder / "package.json").write_text(json.dumps({"dependencies": packages[""]["dependencies"]}))
    (partial_folder / "package-lock.json").write_text(agent.npm)
    (node,) = partial_folder.glob(NODE)
    npm = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
    try:
        _run([str(node), str(npm), "ci", *options, "--prefix", str(partial_folder)], "installing it with npm", lock)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\nThe packages come from the registry that npm is set to (`npm config get registry`). Check that "
            f"this machine reaches it, then {_AGAIN.format(agent.name)} again"
        ) from None


def _run(command: Sequence[str], what: str, lock: int, report_output: Callable[[str], None] = lambda _: None) -> None:
    """Run a program to its end. If we are interrupted, kill it and all its children."""
    deadline = time.monotonic() + DEADLINE_S
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],
        )
        try:
            while _is_running(child):
                report_output(_read_output(output.fileno()))
                if time.monotonic() > deadline:
                    raise ConfigError(f"{what} did not finish within {DEADLINE_S:g} s")
        except BaseException:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            raise
        text = _read_output(output.fileno())
        if child.returncode != 0:
            raise ConfigError(
                mismatch(text) or f"{what} failed with {child.returncode}: {text.strip()[-_OUTPUT_TAIL:]}"
            )
        report_output(text)


def _is_running(child: "subprocess.Popen[bytes]") -> bool:
    with suppress(subprocess.TimeoutExpired):
        child.wait(_REPORT_EVERY_S)
    return child.returncode is None


def _read_output(file: int) -> str:
    """Read a file that another process writes to, without moving the position that both share."""
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

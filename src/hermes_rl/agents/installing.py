"""Installing an agent: its folder, filled by pip on this machine, where there is a network, and nowhere else.

Always true: a folder with an agent's name is whole, and every user of this machine can read it, since each sandbox that
root starts has a user of its own. The folder can be moved: it is used at another path than it was made at. One process
installs at a time, and clears away what one before it, that was killed, left unfinished.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from hermes_rl.agents.agent import Agent
from hermes_rl.errors import ConfigError
from hermes_rl.home import images_home
from hermes_rl.locks import locked_within

Say = Callable[[int, str], object]
"""Hears how many of STEPS are done, and what is going on; twice a second."""
STEPS = 3
# What a sandbox without an image has: an interpreter below the home of whoever installs would be missing there.
PYTHONS = ("python3", "python3.13", "python3.12", "python3.11")
DEADLINE_S = 3600.0
_SAY_EVERY_S = 0.5
_LAST_WORDS = 2_000
# A package of the index, or one at a URL.
_BEGUN = re.compile(r"^(?:Collecting|Processing) (\S+)", re.MULTILINE)
_UNPACKING = "Installing collected packages"


def agents_home() -> Path:
    """Where agents are installed: beside the images, since the users of sandboxes have to reach both."""
    return images_home().with_name("agents")


def installed(agent: Agent) -> Path | None:
    folder = agents_home() / agent.folder_name
    return folder if folder.is_dir() else None


def install(agent: Agent, say: Say = lambda *_: None) -> Path:
    """The agent's folder, made unless it is there."""
    folder = agents_home() / agent.folder_name
    if folder.is_dir():
        return folder
    part = folder.with_name(f"{folder.name}.part")
    try:
        _make_open(folder.parent)
        with _alone(folder.parent, say) as lock:
            if folder.is_dir():
                return folder
            shutil.rmtree(part, ignore_errors=True)
            try:
                _make_open(part)
                _install_pip(agent, part, say, lock)
                _run(["chmod", "-R", "a+rX,go-w", str(part)], "opening its files to the users of sandboxes", lock)
                part.rename(folder)
                say(STEPS, "done")
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {part.parent}: {error}; HERMES_HOME moves it to another place") from error
    return folder


@contextmanager
def _alone(folder: Path, say: Say) -> Iterator[int]:
    """Holds the folder's lock. What is started here holds it too, so that it also lasts as long as orphans write."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        waiting = partial(say, 0, "another process installs an agent; waiting for it")
        if not locked_within(lock, DEADLINE_S, ask_every=_SAY_EVERY_S, waiting=waiting):
            raise ConfigError(f"another process has held {folder} for an hour; end it")
        yield lock
    finally:
        os.close(lock)


def _make_open(folder: Path) -> None:
    for one in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        one.mkdir(exist_ok=True)
        one.chmod(0o711)


def _install_pip(agent: Agent, part: Path, say: Say, lock: int) -> None:
    python = _python(agent)
    say(0, f"an environment for {python}")
    _run([python, "-m", "venv", "--without-pip", str(part)], "making its Python environment", lock)
    inside = str(part / "bin" / "python")
    if find_spec("pip") is not None:
        words = [sys.executable, "-m", "pip", "--python", inside, "install", "--disable-pip-version-check"]
        words += ["--no-input", "--progress-bar", "off"]
    elif uv := shutil.which("uv"):
        words = [uv, "pip", "install", "--python", inside, "--compile-bytecode"]
    else:
        raise ConfigError("installing an agent needs pip or uv: run `python -m ensurepip` first")

    def tell(output: str) -> None:
        begun = _BEGUN.findall(output)
        if _UNPACKING in output:
            say(2, f"unpacking and compiling {len(agent.pip)}")
        else:
            last = begun[-1].rpartition("/")[2] if begun else ""
            say(1, f"fetching {len(begun)} of {len(agent.pip)} {last}".strip())

    try:
        _run([*words, "--no-deps", *agent.pip], "installing its packages", lock, tell)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\nThe packages come from the index that pip is set to (`pip config list`). See if this machine "
            f"reaches it; `hermes-rl agent install {agent.name}` begins again"
        ) from None


def _python(agent: Agent) -> str:
    """An interpreter of the system's that the agent can use."""
    lowest, beyond = agent.python
    for name in PYTHONS:
        path = f"/usr/bin/{name}"
        if os.access(path, os.X_OK) and lowest <= _version(path) < beyond:
            return path
    wanted = f"at least {lowest[0]}.{lowest[1]} and below {beyond[0]}.{beyond[1]}"
    raise ConfigError(f"{agent.name} needs a Python {wanted} in /usr/bin, which its sandboxes see too; install one")


def _version(python: str) -> tuple[int, int]:
    code = "import sys; print(*sys.version_info[:2])"
    said = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    major, minor = said.stdout.split() or (0, 0)
    return int(major), int(minor)


def _run(words: Sequence[str], what: str, lock: int, tell: Callable[[str], None] = lambda _: None) -> None:
    """Run a program to its end. When we are interrupted it ends too, with all that it started."""
    deadline = time.monotonic() + DEADLINE_S
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],
        )
        try:
            while _runs(child):
                tell(_text(output.fileno()))
                if time.monotonic() > deadline:
                    raise ConfigError(f"{what} was not done within {DEADLINE_S:g} s")
        except BaseException:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            raise
        said = _text(output.fileno())
        if child.returncode != 0:
            raise ConfigError(f"{what} failed with {child.returncode}: {said.strip()[-_LAST_WORDS:]}")
        tell(said)


def _runs(child: "subprocess.Popen[bytes]") -> bool:
    with suppress(subprocess.TimeoutExpired):
        child.wait(_SAY_EVERY_S)
    return child.returncode is None


def _text(file: int) -> str:
    """What stands in a file that another process writes to, at the position that both share: so without moving it."""
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

"""The Python environment that SkyRL runs in: found by its pins, or made on first use.

Always true: an environment counts only when its making was finished; one process makes it while others wait; it never
shares a package with the one hermes-rl is installed in.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.locks import locked_within
from hermes_rl.training.selfhost.places import ENVIRONMENT_PREFIX, engines_home

PINS = Path(__file__).with_name("skyrl.txt")
# 1.1 GB in the end, and the wheels it comes from beside it.
ROOM_NEEDED = 3 * 10**9
# What an environment has, in a fifth of a second; and whether its libraries fit this machine, in some.
HAS_PARTS = "from importlib.metadata import version as v; list(map(v, ('flax', 'jax', 'tinker'))); print(v('skyrl'))"
LOADS_PARTS = f"import flax, jax, tinker; {HAS_PARTS}"
PROOF_DEADLINE_S, INSTALL_DEADLINE_S, LOCK_DEADLINE_S = 180.0, 3600.0, 3600.0
SKYRL = "0.3.0"
OLDEST, NEWEST = (3, 11), (3, 13)

Say = Callable[[int, str], None]
STEPS = 3


class EnvironmentMakingError(HermesRLError):
    """The environment could not be made; it is begun anew by the next try."""


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    home: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def key(self) -> str:
        """Tells apart what was compiled for one environment from what was for another."""
        return hashlib.sha256(str(self.home).encode()).hexdigest()[:16]


def existing_environment(home: Path) -> EngineEnvironment:
    """One that somebody else made; ConfigError when SkyRL would not run in it."""
    environment = EngineEnvironment(home.expanduser().absolute())
    if not environment.python.exists():
        raise ConfigError(f"--environment {home} has no bin/python; leave it out to have one made")
    if fault := _fault_of(environment, HAS_PARTS):
        raise ConfigError(
            f"--environment {home} cannot run SkyRL {SKYRL}: {fault}\nInstall into it what {PINS} names, or leave "
            "--environment out to have one made"
        )
    return environment


def own_environment(say: Say) -> EngineEnvironment:
    """The one that hermes-rl keeps; made when there is none. `say` hears how many of STEPS are done, and what is."""
    python = find_python()
    made_of = f"{_version_of(python)}\n".encode() + PINS.read_bytes()
    home = engines_home() / f"{ENVIRONMENT_PREFIX}{hashlib.sha256(made_of).hexdigest()[:16]}"
    environment = EngineEnvironment(home)
    home.parent.mkdir(parents=True, exist_ok=True)
    with _locked(home.with_suffix(".lock"), say):
        if not (home / "complete").exists():
            _make(environment, python, say)
            (home / "complete").touch()
    return environment


def none_is_made() -> bool:
    """Whether `own_environment` will take minutes, as far as can be told without asking Python for its version."""
    return not any(engines_home().glob(f"{ENVIRONMENT_PREFIX}*/complete"))


def find_python() -> str:
    """This interpreter, or another of a version that the pinned wheels were made for."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return sys.executable
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        if found := shutil.which(f"python3.{minor}"):
            return found
    raise ConfigError(
        f"SkyRL needs Python 3.{OLDEST[1]} to 3.{NEWEST[1]}, and this machine has none on its PATH (hermes-rl runs on "
        f"{sys.version.split()[0]}); install one, or pass --environment"
    )


def _version_of(python: str) -> str:
    return subprocess.run([python, "-VV"], capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def _make(environment: EngineEnvironment, python: str, say: Say) -> None:
    free = shutil.disk_usage(environment.home.parent).free
    if free < ROOM_NEEDED:
        raise EnvironmentMakingError(
            f"SkyRL's environment takes {ROOM_NEEDED / 10**9:g} GB while it is made, and {environment.home.parent} has "
            f"{free / 10**9:.1f} GB left; make room, or move the home by HERMES_HOME"
        )
    shutil.rmtree(environment.home, ignore_errors=True)
    pip = [str(environment.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    say(0, "a Python environment of its own")
    _run([python, "-m", "venv", str(environment.home)])
    say(1, "SkyRL, JAX and what they need, about two minutes")
    _run([*pip, "--no-deps", "-r", str(PINS)])
    say(2, "whether it works")
    if fault := _fault_of(environment, LOADS_PARTS):
        raise EnvironmentMakingError(f"{environment.home} was made and cannot run SkyRL: {fault}")
    say(STEPS, "done")


def _fault_of(environment: EngineEnvironment, proof: str) -> str | None:
    """What keeps SkyRL from running there; None when nothing does."""
    done = _finished([str(environment.python), "-c", proof], PROOF_DEADLINE_S)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    version = done.stdout.strip().splitlines()[-1]
    return None if version == SKYRL else f"it has SkyRL {version}"


def _run(command: list[str]) -> None:
    done = _finished(command, INSTALL_DEADLINE_S)
    if done.returncode != 0:
        raise EnvironmentMakingError(
            f"`{' '.join(command)}` ended with {done.returncode}; the same command goes on from here:\n"
            f"{done.stderr.strip()[-2000:]}"
        )


def _finished(command: list[str], deadline: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=deadline, env=clean_environ()
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentMakingError(f"`{' '.join(command)}` was not done within {deadline:g} s") from error


def clean_environ() -> dict[str, str]:
    """The variables of this process but those that would lead another Python astray."""
    return {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }


@contextmanager
def _locked(path: Path, say: Say) -> Iterator[None]:
    waiting = partial(say, 0, "another process is making it")
    with path.open("w") as lock:
        if not locked_within(lock.fileno(), LOCK_DEADLINE_S, ask_every=0.5, waiting=waiting):
            raise EnvironmentMakingError(f"another process has held {path} for an hour; end it")
        yield

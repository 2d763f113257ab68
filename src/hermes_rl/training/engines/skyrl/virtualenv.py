"""The virtual environment that SkyRL runs in, keyed by its pins and installed on first use.

Always true: an environment is used only after its installation finished; one process installs while others wait; it
shares no package with the environment of hermes-rl; every file installed has the hash that its pin names.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.file_lock import acquire_within
from hermes_rl.core.pip_hashes import mismatch
from hermes_rl.core.private_files import private_folder
from hermes_rl.training.engines.skyrl.paths import ENVIRONMENT_PREFIX, engines_home

PINS, CUDA_PINS = (Path(__file__).with_name(name) for name in ("skyrl.txt", "skyrl-cuda.txt"))
# 1.1 GB installed, with CUDA 6 GB, plus the wheels during installation.
DISK_NEEDED, CUDA_DISK_NEEDED = 3 * 10**9, 12 * 10**9
# The first checks installed versions in 0.2 s; the second imports the libraries, which takes seconds.
CHECK_INSTALLED = (
    "from importlib.metadata import version as v; list(map(v, ('flax', 'jax', 'tinker'))); print(v('skyrl'))"
)
CHECK_IMPORTS = f"import flax, jax, tinker; {CHECK_INSTALLED}"
CHECK_DEADLINE_S, INSTALL_DEADLINE_S, LOCK_DEADLINE_S = 180.0, 3600.0, 3600.0
SKYRL_VERSION = "0.3.0"
MIN_PYTHON, MAX_PYTHON = (3, 11), (3, 13)

Progress = Callable[[int, str], None]
STEPS = 3


class VenvInstallError(HermesRLError):
    """The environment could not be installed; the next attempt starts over."""


@dataclass(frozen=True, slots=True)
class EngineVenv:
    home: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    @property
    def key(self) -> str:
        """Separates the JIT caches of different environments."""
        return hashlib.sha256(str(self.home).encode()).hexdigest()[:16]


def existing_environment(home: Path) -> EngineVenv:
    """The environment that the user passed; raises ConfigError if SkyRL cannot run in it."""
    environment = EngineVenv(home.expanduser().absolute())
    if not environment.python.exists():
        raise ConfigError(f"--environment {home} has no bin/python; omit it to install one")
    if problem := _check(environment, CHECK_INSTALLED):
        raise ConfigError(
            f"--environment {home} cannot run SkyRL {SKYRL_VERSION}: {problem}\nInstall {PINS} into it, "
            "or omit --environment to install one"
        )
    return environment


def managed_environment(progress: Progress, *, cuda: bool = False) -> EngineVenv:
    """The environment that hermes-rl manages, installed if missing. `progress` gets the steps done and the next one."""
    python = find_python()
    if cuda and sys.platform != "linux":
        raise ConfigError("--cuda: JAX has CUDA wheels for Linux only")
    pins = (PINS, CUDA_PINS) if cuda else (PINS,)
    contents = f"{_python_version(python)}\n".encode() + b"".join(path.read_bytes() for path in pins)
    home = engines_home() / f"{_prefix(cuda)}{hashlib.sha256(contents).hexdigest()[:16]}"
    environment = EngineVenv(home)
    private_folder(home.parent)
    with _locked(home.with_suffix(".lock"), progress):
        if not (home / "complete").exists():
            _install(environment, python, progress, pins)
            (home / "complete").touch()
    return environment


def needs_install(*, cuda: bool = False) -> bool:
    """Whether `managed_environment` will take minutes; a quick guess that does not start Python."""
    return not any(engines_home().glob(f"{_prefix(cuda)}{'?' * 16}/complete"))


def _prefix(cuda: bool) -> str:
    return f"{ENVIRONMENT_PREFIX}cuda-" if cuda else ENVIRONMENT_PREFIX


def find_python() -> str:
    """This interpreter, or one on PATH that the pinned wheels support."""
    if MIN_PYTHON <= sys.version_info[:2] <= MAX_PYTHON:
        return sys.executable
    for minor in range(MIN_PYTHON[1], MAX_PYTHON[1] + 1):
        if found := shutil.which(f"python3.{minor}"):
            return found
    raise ConfigError(
        f"SkyRL needs Python 3.{MIN_PYTHON[1]} to 3.{MAX_PYTHON[1]}, and there is none on PATH (hermes-rl runs on "
        f"{sys.version.split()[0]}); install one, or pass --environment"
    )


def _python_version(python: str) -> str:
    return subprocess.run([python, "-VV"], capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def _install(environment: EngineVenv, python: str, progress: Progress, pins: Sequence[Path]) -> None:
    free = shutil.disk_usage(environment.home.parent).free
    needed = CUDA_DISK_NEEDED if CUDA_PINS in pins else DISK_NEEDED
    if free < needed:
        raise VenvInstallError(
            f"installing SkyRL takes {needed / 10**9:g} GB, and {environment.home.parent} has "
            f"{free / 10**9:.1f} GB free; free some space, or set HERMES_HOME to another disk"
        )
    shutil.rmtree(environment.home, ignore_errors=True)
    pip = python_command("-m", "pip", "install", python=environment.python, isolated=True)
    pip += ["--quiet", "--disable-pip-version-check", "--no-input"]
    progress(0, "create a virtual environment")
    _run(python_command("-m", "venv", str(environment.home), python=python, isolated=True))
    progress(1, "install SkyRL, JAX and their dependencies, about two minutes")
    _run([*pip, "--no-deps", "--require-hashes", *(word for path in pins for word in ("-r", str(path)))])
    progress(2, "check the installation")
    if problem := _check(environment, CHECK_IMPORTS):
        raise VenvInstallError(f"{environment.home} was installed but cannot run SkyRL: {problem}")
    progress(STEPS, "done")


def _check(environment: EngineVenv, script: str) -> str | None:
    """Why SkyRL cannot run there; None if it can."""
    done = _run_process(python_command("-c", script, python=environment.python, isolated=True), CHECK_DEADLINE_S)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    version = done.stdout.strip().splitlines()[-1]
    return None if version == SKYRL_VERSION else f"it has SkyRL {version}"


def _run(command: list[str]) -> None:
    done = _run_process(command, INSTALL_DEADLINE_S)
    if done.returncode != 0:
        raise VenvInstallError(
            mismatch(done.stderr)
            or f"`{' '.join(command)}` failed with exit status {done.returncode}; run the same command to retry:\n"
            f"{done.stderr.strip()[-2000:]}"
        )


def _run_process(command: list[str], deadline: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=deadline, env=clean_environ()
        )
    except subprocess.TimeoutExpired as error:
        raise VenvInstallError(f"`{' '.join(command)}` did not finish within {deadline:g} s") from error


def clean_environ() -> dict[str, str]:
    """The environment variables of this process without those that would affect another Python."""
    return {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    waiting = partial(progress, 0, "another process is installing it")
    with path.open("w") as lock:
        if not acquire_within(lock.fileno(), LOCK_DEADLINE_S, poll_seconds=0.5, on_wait=waiting):
            raise VenvInstallError(f"another process has held {path} for an hour; stop it")
        yield

"""`hermes-rl engine start` as a process of its own, with the real SkyRL, to be ended or killed.

The environment is CI's, and what JAX compiled is kept in it, so that only the first run on a machine compiles.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

CHECKOUT = Path(__file__).parents[2]
# Making the environment takes four minutes of an idle machine, and waits for whoever makes it already.
ENVIRONMENT_DEADLINE_S = 2200.0


def skyrl_environment() -> Path:
    """The environment of SkyRL, which is made when there is none."""
    command = [str(CHECKOUT / "scripts" / "engine_environment"), "skyrl"]
    made = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=ENVIRONMENT_DEADLINE_S)
    return Path(made.stdout.strip())


class SkyrlEngine:
    """The command, with a home of its own; ready when this returns. `url` is where it listens, `pid` its API."""

    def __init__(self, model: Path, home: Path, *options: str) -> None:
        environment = skyrl_environment()
        self.home = home
        self.model = str(model.resolve())
        self._command = [sys.executable, "-m", "hermes_rl", "engine", "start", "--json", "--model", str(model)]
        self._command += ["--environment", str(environment), *options]
        self._variables = {
            **os.environ,
            "HERMES_HOME": str(home),
            "JAX_COMPILATION_CACHE_DIR": str(environment / "compiled"),
            "HF_HUB_OFFLINE": "1",
        }
        self.start()

    def start(self) -> None:
        """Begin another life of it, in the same home."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=self._variables)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(60)
            raise RuntimeError(f"hermes-rl engine start did not; exit status {self.process.returncode}")
        said = json.loads(line)
        self.url, self.pid, self.log = str(said["url"]), int(said["pid"]), Path(said["log"])

    @property
    def worker(self) -> int:
        """The process that computes."""
        return int((self.log.parent / "engine.ready").read_text())

    def kill(self) -> None:
        """As `kill -9` of the command does; all of the engine follows it."""
        self.process.kill()
        self._settle()

    def stop(self) -> None:
        """As Ctrl-C does; that signal itself is ignored in what a shell starts in the background."""
        self.process.send_signal(signal.SIGTERM)
        self._settle()

    def _settle(self) -> None:
        try:
            self.process.wait(60)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(10)
            if self.process.stdout is not None:
                self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.stop()
        else:
            self._settle()

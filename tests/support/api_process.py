"""`hermes-rl api` as a process of its own, to be ended or killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self


class ApiProcess:
    """The command on a free port. `url` is where it listens; the log of a failed start is in the error."""

    def __init__(
        self, database: str, *options: str, port: int = 0, environment: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, "-m", "hermes_rl", "api", "--json", "--port", str(port), "--database", database]
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.kill()
            raise RuntimeError(f"hermes-rl api did not start; exit status {self.process.returncode}")
        self.url: str = json.loads(line)["url"]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self, seconds: float = 60.0) -> int:
        """Ask it to end; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self._ended(seconds)

    def kill(self) -> int:
        self.process.kill()
        return self._ended(10.0)

    def _ended(self, seconds: float) -> int:
        status = self.process.wait(seconds)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()

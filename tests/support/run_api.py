"""atroposlib's own `run-api` as a process, on a free port of this machine."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

READY_DEADLINE_S = 60.0


class RunApi:
    """`run-api` of the environment that `python` belongs to. `url` is where it listens."""

    def __init__(self, python: Path, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._command = [str(python.with_name("run-api")), "--host", "127.0.0.1", "--port", str(self.port)]
        self._log = log
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = self._started()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def restart(self) -> None:
        """Kill it and start it again in the same place."""
        self.kill()
        self.start()

    def start(self) -> None:
        """Begin another life of it, in which nothing of the last one is left."""
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + READY_DEADLINE_S
        # No proxy stands between us and our own server.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with opener.open(self.url, timeout=5):
                    return process
            except (OSError, urllib.error.URLError):
                time.sleep(0.05)
        process.kill()
        process.wait(10)
        raise RuntimeError(f"run-api does not answer; its log ends: {self._log.read_text()[-2000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

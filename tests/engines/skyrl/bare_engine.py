"""SkyRL's two processes started without one of our fixes, as no user has them."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from hermes_rl.training.engines.skyrl.process import INSIDE
from tests.support.skyrl_engine import skyrl_environment

DEADLINE_S = 300.0


class BareEngine:
    """Its API and, where that comes so far, its engine. `log` is what both said."""

    def __init__(self, model: Path, folder: Path, without: str) -> None:
        environment = skyrl_environment()
        self.model = str(model.resolve())
        self._log = folder / "log.txt"
        (folder / "checkpoints").mkdir(parents=True)
        options = f"--base-model {self.model} --database-url sqlite:///{folder}/tinker.db "
        options += f"--checkpoints-base {folder}/checkpoints --without {without}"
        sizes = '{"max_lora_adapters":8,"max_lora_rank":8,"train_micro_batch_size":4,"sample_max_num_sequences":4}'
        variables = {
            "PYTHONPATH": str(INSIDE),
            "JAX_COMPILATION_CACHE_DIR": str(environment / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        with socket.socket() as door, self._log.open("wb") as log:
            door.bind(("127.0.0.1", 0))
            door.listen()
            self.url = f"http://127.0.0.1:{door.getsockname()[1]}"
            command = [str(environment / "bin" / "python"), "-m", "hermes_skyrl", "api", "--listen", str(door.fileno())]
            self.process = subprocess.Popen(
                [*command, *options.split(), "--backend-config", sizes],
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[door.fileno()],
                env=os.environ | variables,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def await_answer(self, path: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with opener.open(f"{self.url}/api/v1/{path}", timeout=5):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.1)
        raise RuntimeError(f"no answer; exit status {self.process.poll()}; the log ends: {self.log[-2000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

"""The workers of one replica: `serve` processes on this machine, one per shard.

Always true: a worker and everything it started die with the process that owns it; a worker gets one SIGTERM, since a
second would abort the rollouts in flight; its output is read at once, so it never blocks on a full pipe.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hermes_rl.core.private_files import write_private
from hermes_rl.core.process_guard import guard_argv
from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.replicas.types import WorkerFacts
from hermes_rl.orchestration.replicas.worker_spec import WorkerSpec

# Limits on buffered output.
MAX_LINES, MAX_LINE_LENGTH = 2000, 2000
PROBLEM_LINES, PROBLEM_CHARACTERS = 8, 1200
KILL_TIMEOUT = 10.0


class Workers:
    """Not thread-safe."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._folder = Path(tempfile.mkdtemp(prefix="hermes-rl-replica-"))
        self._workers: dict[int, _WorkerProcess] = {}
        self._config: Path | None = None
        if spec.config is not None:
            self._config = self._folder / "serve.yaml"
            write_private(self._config, spec.config.encode())

    def start(self, shard: int, launch_id: str) -> None:
        """Does nothing when this launch was started already, or another worker has the shard and is running."""
        last = self._workers.get(shard)
        if last is not None and (last.launch_id == launch_id or last.running):
            return
        self._workers[shard] = _WorkerProcess(launch_id, self._spec.command(shard, self._config), dict(self._spec.env))

    def drain(self, shard: int, launch_id: str) -> None:
        if worker := self._find(shard, launch_id):
            worker.drain()

    def kill(self, shard: int, launch_id: str) -> None:
        if worker := self._find(shard, launch_id):
            worker.kill()

    def drain_all(self) -> None:
        for worker in self._workers.values():
            worker.drain()

    @property
    def running(self) -> bool:
        return any(worker.running for worker in self._workers.values())

    def poll(self) -> dict[int, WorkerFacts]:
        return {shard: worker.facts() for shard, worker in self._workers.items()}

    def take_lines(self) -> list[tuple[int, str]]:
        """The output since the last call, as (shard, line)."""
        return [(shard, line) for shard, worker in self._workers.items() for line in worker.take_lines()]

    def close(self) -> None:
        """Kill the remaining workers."""
        for worker in self._workers.values():
            worker.kill()
        for worker in self._workers.values():
            worker.wait(KILL_TIMEOUT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _find(self, shard: int, launch_id: str) -> "_WorkerProcess | None":
        worker = self._workers.get(shard)
        return worker if worker is not None and worker.launch_id == launch_id else None


class _WorkerProcess:
    def __init__(self, launch_id: str, command: list[str], env: dict[str, str]) -> None:
        self.launch_id = launch_id
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._tail: deque[str] = deque(maxlen=PROBLEM_LINES)
        self._result: dict[str, Any] = {}
        self._process: ProcessIdentity | None = None
        self._exit_code: int | None = None
        self._drained = False
        self._guard = subprocess.Popen(
            guard_argv(command, report=True),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **env},
            # Outside the process group that a terminal's Ctrl-C reaches.
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=self._read_reports, args=[self._guard.stdout], daemon=True),
            threading.Thread(target=self._read_output, args=[self._guard.stderr], daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def running(self) -> bool:
        return self._guard.poll() is None

    def drain(self) -> None:
        if not self._drained and self._process is not None:
            self._drained = self._process.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Close the guard's stdin; the guard then kills the worker and all it started."""
        if self._guard.stdin is not None:
            with suppress(OSError):
                self._guard.stdin.close()

    def wait(self, seconds: float) -> None:
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            self._guard.kill()
        for reader in self._readers:
            reader.join(1.0)

    def facts(self) -> WorkerFacts:
        last_line = self._tail[-1] if self._tail else None
        if self.running:
            return WorkerFacts(self.launch_id, running=True, last_line=last_line)
        for reader in self._readers:
            reader.join(1.0)
        problem = "\n".join(self._tail)[-PROBLEM_CHARACTERS:] if self._exit_code != 0 else None
        ended = self._result.get("ended")
        return WorkerFacts(
            self.launch_id, running=False, exit_code=self._exit_code, ended=ended, problem=problem, last_line=last_line
        )

    def take_lines(self) -> list[str]:
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines

    def _read_reports(self, reports: IO[bytes]) -> None:
        """Read the worker's pid and exit code from the guard."""
        for line in reports:
            report = json.loads(line)
            if "pid" in report:
                self._process = ProcessIdentity.from_pid(report["pid"])
            self._exit_code = report.get("exit_code", self._exit_code)

    def _read_output(self, output: IO[bytes]) -> None:
        for data in output:
            line = data.decode(errors="replace").rstrip()
            if line.startswith("{"):
                # The last line of `serve --json` is its result.
                with suppress(ValueError):
                    self._result = json.loads(line)
                    continue
            if line:
                self._lines.append(line[:MAX_LINE_LENGTH])
                self._tail.append(line[:MAX_LINE_LENGTH])

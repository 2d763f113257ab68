"""The workers of one replica: `serve` processes, a shard each, on the machine that this runs on.

Always true: a worker dies with the process that holds it, and all that it started with it; it is asked to end once,
since a second signal would make it give up what is in flight; what it says is read at once, however seldom anybody
asks, so that it never waits for a reader.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hermes_rl.processes import Identity
from hermes_rl.runs.replicas.order import Order
from hermes_rl.runs.replicas.states import WorkerFacts

# Lines that wait to be asked for, and how long one may be.
MOST_LINES, LONGEST = 2000, 2000
PROBLEM_LINES, PROBLEM_CHARACTERS = 8, 1200
LAST_DEEDS = 10.0


class Workers:
    """Used by one thread. `order` is of all of them."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._folder = Path(tempfile.mkdtemp(prefix="hermes-rl-replica-"))
        self._workers: dict[int, _Worker] = {}
        self._config: Path | None = None
        if order.config is not None:
            self._config = self._folder / "serve.yaml"
            self._config.touch(0o600)
            self._config.write_text(order.config)

    def start(self, shard: int, turn: str) -> None:
        """Nothing when it was started already, or another one has the shard and lives."""
        last = self._workers.get(shard)
        if last is not None and (last.turn == turn or last.running):
            return
        self._workers[shard] = _Worker(turn, self._order.command(shard, self._config), dict(self._order.variables))

    def drain(self, shard: int, turn: str) -> None:
        if worker := self._of(shard, turn):
            worker.drain()

    def kill(self, shard: int, turn: str) -> None:
        if worker := self._of(shard, turn):
            worker.kill()

    def drain_all(self) -> None:
        for worker in self._workers.values():
            worker.drain()

    @property
    def running(self) -> bool:
        return any(worker.running for worker in self._workers.values())

    def look(self) -> dict[int, WorkerFacts]:
        return {shard: worker.facts() for shard, worker in self._workers.items()}

    def lines(self) -> list[tuple[int, str]]:
        """What they said since this was asked last."""
        return [(shard, line) for shard, worker in self._workers.items() for line in worker.taken()]

    def close(self) -> None:
        """End all that is left, at once."""
        for worker in self._workers.values():
            worker.kill()
        for worker in self._workers.values():
            worker.wait(LAST_DEEDS)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _of(self, shard: int, turn: str) -> "_Worker | None":
        worker = self._workers.get(shard)
        return worker if worker is not None and worker.turn == turn else None


class _Worker:
    def __init__(self, turn: str, command: list[str], variables: dict[str, str]) -> None:
        self.turn = turn
        self._said: deque[str] = deque(maxlen=MOST_LINES)
        self._last: deque[str] = deque(maxlen=PROBLEM_LINES)
        self._result: dict[str, Any] = {}
        self._part: Identity | None = None
        self._exit_code: int | None = None
        self._drained = False
        self._guard = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "hermes_rl.runs.replicas.guarded"),
                json.dumps({"command": command, "cwd": str(Path.cwd())}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **variables},
            # Away from the group that a terminal's Ctrl-C reaches.
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=self._hear, args=[self._guard.stdout], daemon=True),
            threading.Thread(target=self._listen, args=[self._guard.stderr], daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def running(self) -> bool:
        return self._guard.poll() is None

    def drain(self) -> None:
        if not self._drained and self._part is not None:
            self._drained = self._part.signal(signal.SIGTERM)

    def kill(self) -> None:
        """By way of the guard, which leaves nothing of it."""
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
        says = self._last[-1] if self._last else None
        if self.running:
            return WorkerFacts(self.turn, running=True, says=says)
        for reader in self._readers:
            reader.join(1.0)
        problem = "\n".join(self._last)[-PROBLEM_CHARACTERS:] if self._exit_code != 0 else None
        ended = self._result.get("ended")
        return WorkerFacts(self.turn, running=False, exit_code=self._exit_code, ended=ended, problem=problem, says=says)

    def taken(self) -> list[str]:
        lines = []
        while self._said:
            lines.append(self._said.popleft())
        return lines

    def _hear(self, told: IO[bytes]) -> None:
        """The guard's news: which process it is, and how it ended."""
        for line in told:
            news = json.loads(line)
            if "pid" in news:
                self._part = Identity.of(news["pid"])
            self._exit_code = news.get("exit_code", self._exit_code)

    def _listen(self, said: IO[bytes]) -> None:
        for data in said:
            line = data.decode(errors="replace").rstrip()
            if line.startswith("{"):
                # The last thing `serve --json` says: what it came to.
                with suppress(ValueError):
                    self._result = json.loads(line)
                    continue
            if line:
                self._said.append(line[:LONGEST])
                self._last.append(line[:LONGEST])

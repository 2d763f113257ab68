"""The Tracer: queues finished spans and sends them in batches to an exporter process.

Always true: `put` never blocks. Spans that the exporter does not take in time are dropped, newest first, and counted.
The exporter is a separate process because encoding a span costs ten times as much as creating it.
"""

import os
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hermes_rl.core import fast_json
from hermes_rl.core.child_python import python_command

MAX_QUEUED = 16_384
BATCH = 512
FLUSH_INTERVAL_S = 0.5
FLUSH_SECONDS = 5.0
# For the exporter's imports: less than a second on an idle machine.
START_SECONDS = 30.0
COMMAND = tuple(python_command("-m", "hermes_rl.tracing.exporter"))


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """The collector endpoint, and the attributes of this process."""

    endpoint: str
    service: str
    resource: Mapping[str, Any]
    timeout: float = 5.0


class Tracer:
    """Use as `with`. The exit waits for delivery, up to FLUSH_SECONDS after the exporter has started.

    `report` gets each problem once, and at the end the number of lost spans.
    """

    def __init__(
        self,
        config: ExportConfig,
        *,
        sample_rate: float = 1.0,
        content: bool = False,
        report: Callable[[str], None] | None = None,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self.sample_rate, self.content = sample_rate, content
        self.dropped = 0
        self.taken = 0
        self.delivered: int | None = None
        """Spans delivered, as reported by the exporter at its end."""
        self._config, self._max_queued = config, max_queued
        self._report = report or (lambda _: None)
        self._queue: deque[tuple[Any, ...]] = deque()
        # The queue's own method, for speed; the sender thread limits the queue length.
        self.put: Callable[[tuple[Any, ...]], object] = self._queue.append
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send_batches, name="traces", daemon=True)
        self._reported: set[str] = set()
        self._output = b""
        self._ready = False

    @property
    def waiting(self) -> int:
        """Queued spans."""
        return len(self._queue)

    @property
    def exporter(self) -> int | None:
        """The exporter's process id."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        # In a new session: Ctrl-C must not stop the exporter before it has delivered.
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/" if Path("/").is_dir() else None,
        )
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        assert self._process.stdout is not None  # noqa: S101
        os.set_blocking(self._process.stdin.fileno(), False)
        os.set_blocking(self._process.stdout.fileno(), False)
        self._send([asdict(self._config)])
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        # After a short run, or on a busy machine, the exporter may still be starting.
        deadline = time.monotonic() + FLUSH_SECONDS + (0.0 if self._ready else START_SECONDS)
        self._thread.join(deadline - time.monotonic())
        process = self._process
        if process is None:
            return
        if self._thread.is_alive():
            # The thread is blocked on a pipe that the exporter does not read.
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, deadline - time.monotonic()))
        if process.poll() is None:
            process.kill()
            process.wait()
        self._read_messages()
        if process.stdout is not None:
            process.stdout.close()
        lost = self.dropped + self.taken - (self.delivered or 0)
        if lost > 0:
            self._report(f"{lost} of {self.dropped + self.taken} spans did not reach {self._config.endpoint}")

    def _send_batches(self) -> None:
        """Send batches until the end is requested and the queue is empty."""
        try:
            ending = False
            while not ending:
                ending = self._ending.wait(FLUSH_INTERVAL_S)
                while self._queue:
                    batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                    self.taken += len(batch)
                    self._send(batch)
                self._read_messages()
        except (OSError, ValueError) as error:
            self._report_once(f"the trace exporter exited ({error}); further spans are dropped")
            while not self._ending.wait(FLUSH_INTERVAL_S):
                self._limit_queue(0)
        finally:
            if self._process is not None and self._process.stdin is not None:
                with suppress(OSError):
                    self._process.stdin.close()

    def _send(self, batch: list[Any]) -> None:
        """Write a batch at the exporter's pace, and limit the queue meanwhile."""
        if self._process is None or self._process.stdin is None:
            return
        pipe, data = self._process.stdin.fileno(), memoryview(fast_json.dumps(batch) + b"\n")
        while data:
            if not select.select([], [pipe], [], FLUSH_INTERVAL_S)[1]:
                self._limit_queue(self._max_queued)
                if self._process.poll() is not None:
                    raise BrokenPipeError("exporter exited")
                continue
            with suppress(BlockingIOError):
                data = data[os.write(pipe, data) :]
            self._limit_queue(self._max_queued)

    def _limit_queue(self, limit: int) -> None:
        while len(self._queue) > limit:
            self._queue.pop()
            self.dropped += 1

    def _read_messages(self) -> None:
        """Read the exporter's messages: ready, problems, and the number delivered."""
        if self._process is None or self._process.stdout is None:
            return
        while data := self._process.stdout.read():
            self._output += data
        *lines, self._output = self._output.split(b"\n")
        for line in lines:
            message = fast_json.loads(line)
            if "problem" in message:
                self._report_once(str(message["problem"]))
            if "ready" in message:
                self._ready = True
            if "delivered" in message:
                self.delivered = int(message["delivered"])

    def _report_once(self, problem: str) -> None:
        if problem not in self._reported:
            self._reported.add(problem)
            self._report(problem)

"""Runs one sink in its own thread, so that it never blocks the run.

Always true: queueing returns immediately and never raises. The first failure is reported and all are counted; after
MAX_FAILURES in a row the sink is disabled. Calls reach the sink in order, with steps that never decrease; when a run
resumes from an earlier step, steps that the sink already has are not logged again.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar, Protocol

from hermes_rl.console.live_display import write_line
from hermes_rl.sinks.run_ids import RunIds
from hermes_rl.sinks.serialize import is_loggable

MAX_FAILURES = 5
# Days of metrics, while the sink waits for a network.
MAX_QUEUED = 10_000
START_SECONDS = 30.0
CLOSE_SECONDS = 30.0

Row = tuple[str, float]


@dataclass(frozen=True, slots=True)
class SinkRun:
    """What a sink is created with. `config` holds no secrets; `environment` are the process's variables."""

    ids: RunIds
    group: str
    config: Mapping[str, Any]
    folder: Path
    environment: MutableMapping[str, str]


class Sink(Protocol):
    """A destination of metrics. Methods may block and raise; all are called on one thread."""

    package: ClassVar[str]

    def start(self) -> str:
        """Start a run; returns a message for the user."""

    def next_step(self) -> int:
        """The step after the last one of a resumed run; 0 for a new run."""

    def log(self, metrics: Mapping[str, Any], step: int) -> None: ...
    def rollouts(self, rows: Sequence[Row], step: int) -> None: ...
    def finish(self, *, failed: bool) -> None: ...


class SinkSteps:
    """Assigns steps for one sink: by default the next one, and never a lower one than before."""

    def __init__(self, next_step: int = 0) -> None:
        self.next_step = next_step

    def take(self, step: int | None) -> int:
        taken = self.next_step if step is None else max(step, self.next_step - 1)
        self.next_step = taken + 1
        return taken

    def latest(self) -> int:
        return self.take(self.next_step - 1) if self.next_step else self.take(None)


class Worker:
    """Runs a sink from `start` to `finish`."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.name = sink.package
        self.failures = 0
        self.dropped = 0
        self.disabled = False
        self._failed_in_a_row = 0
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._steps, self._resume_step = SinkSteps(), 0
        self._started, self._ended = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._run_failed = False
        # A daemon thread: a hanging sink does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"metrics-{self.name}", daemon=True)

    async def start(self) -> None:
        """Wait up to START_SECONDS for the sink to start; lines are queued meanwhile."""
        self._thread.start()
        try:
            await asyncio.wait_for(self._started.wait(), START_SECONDS)
        except TimeoutError:
            self._report(f"has not started within {START_SECONDS:.0f} s; the run continues and queues its metrics")

    def log(self, metrics: Mapping[str, Any], step: int | None) -> None:
        self._put(lambda: self._log(metrics, step))

    def catch_up(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Log the file's lines that the sink lacks, e.g. after the process was killed."""
        self._put(lambda: self._log_all(lines))

    def rewind(self) -> None:
        """Earlier steps will come again; those that the sink already has are skipped."""
        self._put(self._mark_logged)

    def rollouts(self, rows: Sequence[Row]) -> None:
        self._put(lambda: self.sink.rollouts(rows, self._steps.latest()))

    async def close(self, *, failed: bool) -> None:
        """Wait up to CLOSE_SECONDS for the sink to process its queue."""
        if not self._thread.is_alive():
            return
        self._run_failed = failed
        self._queue.put(None)
        try:
            await asyncio.wait_for(self._ended.wait(), CLOSE_SECONDS)
        except TimeoutError:
            self._report(f"did not finish within {CLOSE_SECONDS:.0f} s and was abandoned")

    def _log(self, metrics: Mapping[str, Any], step: int | None) -> None:
        if step is None or step >= self._resume_step:
            loggable = {name: value for name, value in metrics.items() if is_loggable(value, self.name)}
            self.sink.log(loggable, self._steps.take(step))

    def _mark_logged(self) -> None:
        self._resume_step = self._steps.next_step

    def _log_all(self, lines: Sequence[Mapping[str, Any]]) -> None:
        for line in lines:
            self._log({name: value for name, value in line.items() if name not in {"time", "step"}}, line["step"])

    def _put(self, call: Callable[[], None]) -> None:
        if not self.disabled and self._queue.qsize() < MAX_QUEUED:
            self._queue.put(call)
            return
        if not self.disabled and not self.dropped:
            self._report(f"is {MAX_QUEUED} lines behind; further lines are dropped")
        self.dropped += 1

    def _run(self) -> None:
        if self._start_sink():
            self._set_event(self._started)
            while not self.disabled and (call := self._queue.get()) is not None:
                self._call(call)
            self._call(lambda: self.sink.finish(failed=self._run_failed))
        self._set_event(self._started)
        self._set_event(self._ended)

    def _set_event(self, event: asyncio.Event) -> None:
        # The loop is closed if the run stopped waiting.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(event.set)

    def _start_sink(self) -> bool:
        try:
            self._report(self.sink.start())
            self._resume_step = self.sink.next_step()
            self._steps = SinkSteps(self._resume_step)
        except Exception as error:  # noqa: BLE001 (third-party code may raise anything)
            self.failures += 1
            self.disabled = True
            self._report(f"could not start and is disabled: {error_line(error)}")
        return not self.disabled

    def _call(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 (third-party code may raise anything)
            self.failures += 1
            self._failed_in_a_row += 1
            if self.failures == 1:
                self._report(f"failed: {error_line(error)}; the metrics file has every line")
            if self._failed_in_a_row == MAX_FAILURES:
                self.disabled = True
                self._report(f"failed {MAX_FAILURES} times in a row and is disabled")
        else:
            self._failed_in_a_row = 0

    def _report(self, message: str) -> None:
        write_line(f"metrics: {self.name} {message}")


def error_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__

"""One sink on a thread of its own, so that whatever it does holds nobody up.

Always true: `put` returns at once and never raises. A failure is said once and counted; after FAILURES in a row the
sink is off. Calls reach the sink in the order they were put, at steps that never go back; what it has of a step stays
when the run goes back and takes that step again.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ClassVar, Protocol

from hermes_rl.sinks.values import fits

FAILURES = 5
# Lines a sink may be behind: days of metrics, while it waits for a network.
WAITING = 10_000
START_SECONDS = 30.0
CLOSE_SECONDS = 30.0

Row = tuple[str, float]


class Sink(Protocol):
    """One place metrics go to. Every method may block and may raise; all are called on one thread."""

    package: ClassVar[str]

    def start(self) -> str:
        """Begin a run; what to tell the person about it."""

    def next_step(self) -> int:
        """The step that follows the last one of a run taken up again, else 0."""

    def log(self, metrics: Mapping[str, Any], step: int) -> None: ...
    def rollouts(self, rows: Sequence[Row], step: int) -> None: ...
    def finish(self, *, failed: bool) -> None: ...


class Steps:
    """Steps for one sink: the next one when none is given, and never one that went before."""

    def __init__(self, following: int = 0) -> None:
        self.following = following

    def take(self, step: int | None) -> int:
        taken = self.following if step is None else max(step, self.following - 1)
        self.following = taken + 1
        return taken

    def latest(self) -> int:
        return self.take(self.following - 1) if self.following else self.take(None)


class Worker:
    """Runs a sink from `start` to `finish`."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.name = sink.package
        self.failures = 0
        self.dropped = 0
        self.off = False
        self._failed_in_a_row = 0
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._steps, self._had = Steps(), 0
        self._started, self._ended = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._run_failed = False
        # A daemon: a sink that hangs does not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=f"metrics-{self.name}", daemon=True)

    async def start(self) -> None:
        """Wait for the sink to begin, but not longer than START_SECONDS; lines are kept for it meanwhile."""
        self._thread.start()
        try:
            await asyncio.wait_for(self._started.wait(), START_SECONDS)
        except TimeoutError:
            self._say(f"has not started within {START_SECONDS:.0f} s; the run goes on and keeps its metrics for it")

    def log(self, metrics: Mapping[str, Any], step: int | None) -> None:
        self._put(lambda: self._log(metrics, step))

    def catch_up(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """What the file has of the steps before: the sink takes those it lacks, as a killed process leaves it."""
        self._put(lambda: self._log_all(lines))

    def back(self) -> None:
        """Steps that went before come again; the sink keeps what it has of them."""
        self._put(self._keep)

    def rollouts(self, rows: Sequence[Row]) -> None:
        self._put(lambda: self.sink.rollouts(rows, self._steps.latest()))

    async def close(self, *, failed: bool) -> None:
        """Let the sink take what waits for it, but not longer than CLOSE_SECONDS."""
        if not self._thread.is_alive():
            return
        self._run_failed = failed
        self._queue.put(None)
        try:
            await asyncio.wait_for(self._ended.wait(), CLOSE_SECONDS)
        except TimeoutError:
            self._say(f"did not finish within {CLOSE_SECONDS:.0f} s and was left behind")

    def _log(self, metrics: Mapping[str, Any], step: int | None) -> None:
        if step is None or step >= self._had:
            taken = {name: value for name, value in metrics.items() if fits(value, self.name)}
            self.sink.log(taken, self._steps.take(step))

    def _keep(self) -> None:
        self._had = self._steps.following

    def _log_all(self, lines: Sequence[Mapping[str, Any]]) -> None:
        for line in lines:
            self._log({name: value for name, value in line.items() if name not in {"time", "step"}}, line["step"])

    def _put(self, call: Callable[[], None]) -> None:
        if not self.off and self._queue.qsize() < WAITING:
            self._queue.put(call)
            return
        if not self.off and not self.dropped:
            self._say(f"is {WAITING} lines behind; further ones are left out")
        self.dropped += 1

    def _work(self) -> None:
        if self._begin():
            self._tell(self._started)
            while not self.off and (call := self._queue.get()) is not None:
                self._try(call)
            self._try(lambda: self.sink.finish(failed=self._run_failed))
        self._tell(self._started)
        self._tell(self._ended)

    def _tell(self, event: asyncio.Event) -> None:
        # The loop is closed when the run did not wait any longer.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(event.set)

    def _begin(self) -> bool:
        try:
            self._say(self.sink.start())
            self._had = self.sink.next_step()
            self._steps = Steps(self._had)
        except Exception as error:  # noqa: BLE001 (another project's code may raise anything)
            self.failures += 1
            self.off = True
            self._say(f"could not start and is off: {short(error)}")
        return not self.off

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 (another project's code may raise anything)
            self.failures += 1
            self._failed_in_a_row += 1
            if self.failures == 1:
                self._say(f"failed: {short(error)}; the metrics file has every line")
            if self._failed_in_a_row == FAILURES:
                self.off = True
                self._say(f"failed {FAILURES} times in a row and is off")
        else:
            self._failed_in_a_row = 0

    def _say(self, what: str) -> None:
        sys.stderr.write(f"metrics: {self.name} {what}\n")


def short(error: Exception) -> str:
    """An error on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__

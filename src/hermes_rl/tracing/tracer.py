"""The Tracer: takes spans that have ended and hands them, in batches, to a process that exports them.

Always true: `keep` never waits. What the exporter does not take in time is dropped, the newest first, and counted. The
exporter is a process of its own: encoding a span costs ten times what making one does, and holds no event loop there.
"""

import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hermes_rl import jsontext

MOST_WAITING = 16_384
BATCH = 512
EVERY = 0.5
FLUSH_SECONDS = 5.0
# Until the exporter has imported what it needs: less than one where nothing else runs.
START_SECONDS = 30.0
COMMAND = (sys.executable, "-P", "-m", "hermes_rl.tracing.exporter")


@dataclass(frozen=True, slots=True)
class Exporting:
    """Where spans go and what is said of the process they come from."""

    endpoint: str
    service: str
    resource: Mapping[str, Any]
    timeout: float = 5.0


class Tracer:
    """Spans are taken for as long as the `with`; its end waits until they are delivered.

    It waits for FLUSH_SECONDS at most, from when the exporter runs. `report` is told in words what is wrong, once, and
    at the end what was lost.
    """

    def __init__(
        self,
        exporting: Exporting,
        *,
        share: float = 1.0,
        content: bool = False,
        report: Callable[[str], None] | None = None,
        most: int = MOST_WAITING,
    ) -> None:
        self.share, self.content = share, content
        self.dropped = 0
        self.taken = 0
        self.delivered: int | None = None
        """How many the exporter says it delivered, once it has ended."""
        self._exporting, self._most = exporting, most
        self._report = report or (lambda _: None)
        self._waiting: deque[tuple[Any, ...]] = deque()
        # The queue's own method, since it is called for each span; the thread that empties it sees to its length.
        self.keep: Callable[[tuple[Any, ...]], object] = self._waiting.append
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._hand_over, name="traces", daemon=True)
        self._told: set[str] = set()
        self._heard = b""
        self._ready = False

    @property
    def waiting(self) -> int:
        """Spans that are not handed over yet."""
        return len(self._waiting)

    @property
    def exporter(self) -> int | None:
        """The exporter's process id."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        # In a session of its own: Ctrl-C on a terminal is for us, and it is to deliver what we did until then.
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
        self._send([asdict(self._exporting)])
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        # A process that lived for a moment, or a busy machine: the exporter may still be starting.
        deadline = time.monotonic() + FLUSH_SECONDS + (0.0 if self._ready else START_SECONDS)
        self._thread.join(deadline - time.monotonic())
        process = self._process
        if process is None:
            return
        if self._thread.is_alive():
            # It hangs on a pipe that nobody reads.
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, deadline - time.monotonic()))
        if process.poll() is None:
            process.kill()
            process.wait()
        self._hear()
        if process.stdout is not None:
            process.stdout.close()
        lost = self.dropped + self.taken - (self.delivered or 0)
        if lost > 0:
            self._report(f"{lost} of {self.dropped + self.taken} spans did not reach {self._exporting.endpoint}")

    def _hand_over(self) -> None:
        """Batches to the exporter, until it is told to end and there are no more."""
        try:
            ending = False
            while not ending:
                ending = self._ending.wait(EVERY)
                while self._waiting:
                    batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                    self.taken += len(batch)
                    self._send(batch)
                self._hear()
        except (OSError, ValueError) as error:
            self._say(f"the exporter of traces is gone ({error}); spans are dropped from here on")
            while not self._ending.wait(EVERY):
                self._bound(0)
        finally:
            if self._process is not None and self._process.stdin is not None:
                with suppress(OSError):
                    self._process.stdin.close()

    def _send(self, batch: list[Any]) -> None:
        """Write a batch as the exporter takes it, and meanwhile see that the queue does not grow without end."""
        if self._process is None or self._process.stdin is None:
            return
        pipe, data = self._process.stdin.fileno(), memoryview(jsontext.dumps(batch) + b"\n")
        while data:
            if not select.select([], [pipe], [], EVERY)[1]:
                self._bound(self._most)
                if self._process.poll() is not None:
                    raise BrokenPipeError("it has ended")
                continue
            with suppress(BlockingIOError):
                data = data[os.write(pipe, data) :]
            self._bound(self._most)

    def _bound(self, most: int) -> None:
        while len(self._waiting) > most:
            self._waiting.pop()
            self.dropped += 1

    def _hear(self) -> None:
        """What the exporter says: a problem in words, and how many it delivered in all."""
        if self._process is None or self._process.stdout is None:
            return
        while said := self._process.stdout.read():
            self._heard += said
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            told = jsontext.loads(line)
            if "problem" in told:
                self._say(str(told["problem"]))
            if "ready" in told:
                self._ready = True
            if "delivered" in told:
                self.delivered = int(told["delivered"])

    def _say(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            self._report(problem)

"""The processes of a chaos: API replicas, producers and the consumer, each to be killed and started again.

Always true: an actor's ledger, board and spool outlive it; one that ended without being killed is told as a fault.
"""

import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.chaos.trajectory import ledger
from tests.chaos.trajectory.board import MAKING, SENDING, Board, Doing, Phase
from tests.support.api_process import ApiProcess

ROOT = Path(__file__).parents[3]
READY_S = 60.0
# So many rollouts may wait, so that the consumer always has some and the producers feel it.
MAX_QUEUED = 1_500
NOT_YET = frozenset({Phase.STARTING, Phase.RESUMING})


class Actor:
    """A producer or the consumer, over all its lives."""

    def __init__(self, directory: Path, command: Callable[[int], Sequence[str]]) -> None:
        directory.mkdir()
        self.directory = directory
        self.lives = 0
        self._command = command
        self._board = Board(directory / "board")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._board.clear()
        with (self.directory / "stderr").open("ab") as log:
            words = [sys.executable, "-m", *self._command(self.lives)]
            self._process = subprocess.Popen(words, stdout=log, stderr=log, cwd=ROOT)
        self.lives += 1

    def doing(self) -> tuple[Doing, ...]:
        return self._board.read()

    @property
    def at_work(self) -> bool:
        return self.doing()[MAKING].phase not in NOT_YET

    @property
    def status(self) -> int | None:
        """How it ended, None while it lives."""
        assert self._process is not None
        return self._process.poll()

    def kill(self) -> tuple[Doing, ...]:
        """What it was doing when it died."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(READY_S)
        return self.doing()

    def wait(self, seconds: float) -> int | None:
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def told(self) -> list[dict[str, Any]]:
        return ledger.read(self.directory / "ledger")

    def log(self) -> str:
        return (self.directory / "stderr").read_text(errors="replace")[-1500:]

    def spooled(self) -> Counter[str]:
        """Groups in its spool, and those half written."""
        return Counter(path.suffix[1:] for path in (self.directory / "spool").glob("*.*"))


class Replica:
    """One API process on one port, over all its lives; it starts beside whatever else happens."""

    def __init__(self, address: str, threads: ThreadPoolExecutor) -> None:
        self._address, self._threads = address, threads
        self._starting: Future[ApiProcess] = threads.submit(self._start, 0)

    @cached_property
    def url(self) -> str:
        """The same in all lives."""
        return self.process.url

    @cached_property
    def port(self) -> int:
        return self.process.port

    def _start(self, port: int) -> ApiProcess:
        """As a supervisor does: again, while the database is away too."""
        until = time.monotonic() + READY_S
        while True:
            try:
                return ApiProcess(self._address, "--max-queued", str(MAX_QUEUED), port=port)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    @property
    def process(self) -> ApiProcess:
        return self._starting.result(2 * READY_S)

    @property
    def ready(self) -> bool:
        return self._starting.done()

    def restart(self) -> None:
        self._starting = self._threads.submit(self._start, self.port)


class Stage:
    """All of them, from `with` to its end; `faults` are what no kill explains."""

    def __init__(
        self,
        address: str,
        directory: Path,
        *,
        producers: int,
        replicas: int,
        seed: int,
        pace: float,
        plant: str = "none",
    ) -> None:
        self.address, self.directory = address, directory
        self.faults: list[str] = []
        self._threads = ThreadPoolExecutor(replicas)
        self.replicas: list[Replica] = []
        self._wanted = replicas
        self._seed, self._pace, self._plant = seed, pace, plant
        self.producers = [
            Actor(directory / f"p{index}", lambda life, index=index: self._producer(index, life))  # type: ignore[misc]
            for index in range(producers)
        ]
        self.consumer = Actor(directory / "consumer", self._consumer)

    @property
    def actors(self) -> list[Actor]:
        return [*self.producers, self.consumer]

    def __enter__(self) -> Self:
        try:
            # One after the other: the first makes the tables.
            for _ in range(self._wanted):
                self.replicas.append(Replica(self.address, self._threads))
                assert self.replicas[-1].url and self.replicas[-1].port
            for actor in self.actors:
                actor.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for actor in self.actors:
            if actor.lives and actor.status is None:
                actor.kill()
        for replica in self.replicas:
            if replica.process.process.poll() is None:
                replica.process.kill()
        self._threads.shutdown()

    def asked(self, replica: Replica | None = None) -> list[Doing]:
        """What callers wait for, of this API or of any."""
        asked = [actor.doing()[SENDING] for actor in self.actors]
        return [doing for doing in asked if replica is None or doing.port == replica.port]

    def look_after(self) -> None:
        """Start again what ended by itself, and tell it."""
        for actor in self.actors:
            if actor.status is not None:
                self.faults.append(f"{actor.directory.name} ended by itself, {actor.status}: {actor.log()}")
                actor.start()
        for replica in self.replicas:
            if replica.ready and (status := replica.process.process.poll()) is not None:
                self.faults.append(f"the API ended by itself, {status}")
                replica.restart()

    def drain(self, seconds: float) -> None:
        """Let the producers post what they have, and the consumer train on it, to the end."""
        until = time.monotonic() + seconds
        for word, actors in (("stop", self.producers), ("drain", [self.consumer])):
            (self.directory / word).touch()
            for actor in actors:
                status = actor.wait(max(until - time.monotonic(), 0.1))
                if status != 0:
                    self.faults.append(f"{actor.directory.name} did not drain, {status}: {actor.log()}")
        for replica in self.replicas:
            if (status := replica.process.stop()) != 0:
                self.faults.append(f"the API ended with {status}")

    def _producer(self, index: int, life: int) -> list[str]:
        module, place = "tests.chaos.trajectory.producer", self.directory / f"p{index}"
        return [module, str(place), f"p{index}", f"{self._seed}/{index}/{life}", str(self._pace), self._plant,
                *self._urls(index + life)]  # fmt: skip

    def _consumer(self, life: int) -> list[str]:
        module, place = "tests.chaos.trajectory.consumer", self.directory / "consumer"
        return [module, str(place), f"{self._seed}/{life}", str(self._pace), self._plant, *self._urls(life)]

    def _urls(self, first: int) -> list[str]:
        """All replicas, each life beginning with another."""
        urls = deque(replica.url for replica in self.replicas)
        urls.rotate(-first)
        return list(urls)

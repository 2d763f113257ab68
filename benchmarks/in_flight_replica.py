"""A part of benchmarks/in_flight.py: a replica, the process that plays its share of a level once it is told to begin.

    in_flight_replica.py URL …    reads a job, says ready, waits for a line, plays, and prints what it cost

Always true: the lag is that of a task which only sleeps, on the loop that plays the rollouts.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple, Self

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.peers.drive import status_kb  # noqa: E402
from benchmarks.peers.measures import Model, pinned  # noqa: E402
from benchmarks.peers.work import Job  # noqa: E402

EVERY = 0.05
WARM = 8


class Lag(NamedTuple):
    """How late the loop came back to a task that only sleeps, in seconds: while all begin, and afterwards."""

    beginning: list[float]
    after: list[float]


async def watched(work: Coroutine[Any, Any, None], beginning: float) -> Lag:
    """Do the work and watch the loop; `beginning` is how long rollouts begin."""
    lag, started = Lag([], []), time.perf_counter()

    async def look() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(EVERY)
            seen = lag.beginning if began - started < beginning else lag.after
            seen.append(time.perf_counter() - began - EVERY)

    looking = asyncio.create_task(look())
    await work
    looking.cancel()
    return lag


def play(urls: tuple[str, ...], job: Job) -> None:
    from benchmarks.peers import ours
    from hermes_rl.console.run_command import run_async

    warm = Job(urls[0], "null", WARM, WARM, f"{job.folder}/warm", warm=True)
    Path(warm.folder).mkdir(parents=True)
    run_async(ours.play(warm, urls))
    Path("/proc/self/clear_refs").write_text("5")
    before = status_kb("VmRSS")
    print("ready", flush=True)
    sys.stdin.readline()
    cpu, began = time.process_time(), time.perf_counter()
    lag = run_async(watched(ours.play(job, urls), job.delay))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = status_kb("VmHWM")
    kept = ours.kept(job)
    shares = quantiles(lag.after, n=100, method="inclusive") if len(lag.after) > 1 else [0.0] * 99
    told = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "before_kb": before,
        "peak_kb": peak,
        "lag_p50_ms": shares[49] * 1000,
        "lag_p99_ms": shares[98] * 1000,
        "lag_worst_ms": max(lag.after, default=0.0) * 1000,
        "lag_beginning_ms": max(lag.beginning, default=0.0) * 1000,
        "right": sum(score == 1.0 for score in kept.scores.values()),
        "causes": sorted(set(kept.causes.values())),
    }
    print(json.dumps(told), flush=True)


class Replica:
    """The process as its parent sees it; alone it has a core to itself."""

    def __init__(self, number: int, rollouts: int, delay: float, urls: list[str], folder: Path, *, alone: bool) -> None:
        home = folder / str(number)
        job = Job(urls[0], "null", rollouts, rollouts, str(home), delay, first=number * rollouts)
        command = [sys.executable, str(Path(__file__).resolve()), *urls]
        self.process = subprocess.Popen(
            pinned(1, command) if alone else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HERMES_HOME": str(home / "home")},
        )
        self.say(job.written())

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()


class Watch:
    """Looks at the machine and at the models all the while: memory left, and requests that wait at one moment.

    What the kernel holds for sockets is in no process, so it is the machine's memory that is looked at.
    """

    def __init__(self, models: Sequence[Model], every: float) -> None:
        self.models, self.every = models, every
        self.left, self.waiting = [available_mb()], [0]
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def look(self) -> None:
        while not self.ended.wait(self.every):
            self.left.append(available_mb())
            self.waiting.append(sum(model.waiting() for model in self.models))

    def taken_mb(self) -> float:
        return self.left[0] - min(self.left)

    def most_waiting(self) -> int:
        return max(self.waiting)

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()


def available_mb() -> float:
    line = next(one for one in Path("/proc/meminfo").read_text().splitlines() if one.startswith("MemAvailable"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    play(tuple(sys.argv[1:]), Job.read(sys.stdin.readline()))

"""Runs one framework's driver once, in that framework's environment, and prints what it cost as one JSON object.

    drive.py DRIVER LIMIT <JOB

A small job warms the process up first. Always true: processor time and memory are this process's own, of the job alone;
a run that is not done after LIMIT seconds says so, with what it cost so far, and ends.
"""

import json
import os
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1])]

from benchmarks.peers.work import Job, Kept  # noqa: E402

WARM = 8


def main() -> None:
    name, limit = sys.argv[1], float(sys.argv[2])
    # Frameworks print what they like; the figures go where nothing else does.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = Job.read(sys.stdin.read())
    driver = import_module(f"benchmarks.peers.{name}")
    warm = replace(job, rollouts=WARM, in_flight=WARM, faults=False, folder=f"{job.folder}/warm")
    Path(warm.folder).mkdir(parents=True)
    driver.drive(replace(warm, warm=True))
    begin(job)
    cost = Cost(told, driver, limit)
    driver.drive(job)
    cost.stop()
    cost.tell(driver.kept(job))


def begin(job: Job) -> None:
    """Let the model take its time from here on, and forget the warm-up."""
    slower = urllib.request.Request(f"{job.base_url}/delay", data=str(job.delay).encode(), method="PUT")
    for asked in (slower, f"{job.base_url}/stats"):
        with urllib.request.urlopen(asked, timeout=60) as response:
            response.read()


class Cost:
    """What the job cost this process, told once: at its end, or when the limit is reached."""

    def __init__(self, told: TextIO, driver: Any, limit: float) -> None:
        self.told, self.driver = told, driver
        self.ended = threading.Lock()
        self.timer = threading.Timer(limit, self.reached)
        self.timer.daemon = True
        self.seconds = self.cpu_seconds = 0.0
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self.memory_kb = -status_kb("VmRSS")
        self.cpu, self.began = time.process_time(), time.perf_counter()
        self.timer.start()

    def stop(self) -> None:
        """What comes after is not the framework's: its records are read back."""
        self.ended.acquire()
        self.timer.cancel()
        self.seconds, self.cpu_seconds = time.perf_counter() - self.began, time.process_time() - self.cpu
        self.memory_kb += status_kb("VmHWM")

    def reached(self) -> None:
        self.stop()
        self.tell(None)

    def tell(self, kept: Kept | None) -> None:
        figures = {
            "version": self.driver.VERSION,
            "settings": self.driver.SETTINGS,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "memory_kb": self.memory_kb,
            "finished": kept is not None,
            "outcomes": None if kept is None else outcomes(kept),
            "causes": {} if kept is None else causes(kept),
            "open_sandboxes": 0 if kept is None else kept.open_sandboxes,
        }
        self.told.write(json.dumps(figures) + "\n")
        self.told.flush()
        # Whatever threads and tasks the framework has left.
        os._exit(0)


def status_kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def outcomes(kept: Kept) -> dict[str, dict[str, int]]:
    """Of each kind of rollout, how many were kept right (1.0), wrong (another score) and without a score."""
    counted: dict[str, Counter[str]] = {}
    for name, score in kept.scores.items():
        outcome = "unscored" if score is None else "right" if score == 1.0 else "wrong"
        counted.setdefault(name.partition("/")[2], Counter())[outcome] += 1
    return {kind: dict(each) for kind, each in counted.items()}


def causes(kept: Kept) -> dict[str, dict[str, int]]:
    """Of each kind, what the framework says happened."""
    counted: dict[str, Counter[str]] = {}
    for name, cause in kept.causes.items():
        counted.setdefault(name.partition("/")[2], Counter())[cause[:120]] += 1
    return {kind: dict(each) for kind, each in counted.items()}


if __name__ == "__main__":
    main()

"""Test processes side by side: a queue of jobs, as many at once as keep the cores busy, each with a log of its own.

What failed beside other jobs is tried once more alone, a few tests at most, and named: what passes then does not fail
the run, but is a flaky test to be fixed. What fails twice fails.
"""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# More failures than this are not bad luck.
SECOND_TRIES = 5
FAILED, NO_TESTS = 1, 5
# For the servers that a job's tests have started.
END_SECONDS = 60.0
# A shell's background jobs ignore SIGINT, and so would every program that their tests interrupt.
DEFAULT_SIGNALS = ("env", "--default-signal=INT,QUIT")
# What Debian's mirrors do not have every day; scripts/sandbox_parts says why.
UNAVAILABLE = ("NO APPTAINER:", "NO RUNSC:", "NO GVISOR:")


@dataclass(frozen=True, slots=True)
class Job:
    """`pytest` are pytest's arguments; without them `command` is run as it is."""

    name: str
    pytest: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(slots=True)
class Result:
    name: str
    status: int
    minutes: float
    cpu_minutes: float
    log: Path
    tests: int = 0
    # Seconds, seconds of CPU, name: the slowest first.
    slowest: list[tuple[float, float, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    second_try: list[str] = field(default_factory=list)


class Runner:
    """Starts jobs in the order given, `width` at once. `folder` takes logs, results and pytest's caches."""

    def __init__(self, folder: Path, *, width: int, options: Sequence[str] = ()) -> None:
        self._folder = folder
        self._width = width
        self._options = tuple(options)

    def run(self, jobs: Sequence[Job], passed: Callable[[Result], object] = lambda _: None) -> list[Result]:
        """What came of each job; `passed` is called as soon as one has."""
        waiting, running, ended = list(jobs), list[tuple[Job, subprocess.Popen[bytes], float]](), list[Result]()
        try:
            while waiting or running:
                while waiting and len(running) < self._width:
                    job = waiting.pop(0)
                    running.append((job, self._start(job), time.monotonic()))
                    print(f"--- {job.name}: started", flush=True)
                time.sleep(0.2)
                for entry in list(running):
                    job, process, started = entry
                    pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                    if not pid:
                        continue
                    running.remove(entry)
                    process.returncode = os.waitstatus_to_exitcode(status)
                    cpu = usage.ru_utime + usage.ru_stime
                    result = self._result(job, process.returncode, time.monotonic() - started, cpu)
                    ended.append(result)
                    if result.status == 0:
                        passed(result)
                    print(f"\n--- {job.name}: status {result.status} after {result.minutes:.1f} minutes", flush=True)
                    _copy(result.log)
        finally:
            self._end([process for _, process, _ in running])
        self._try_again(jobs, ended)
        return ended

    def _end(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Interrupted, pytest ends the servers of its fixtures; by SIGTERM they would be left running."""
        for process in processes:
            os.killpg(process.pid, signal.SIGINT)
        for process in processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _start(self, job: Job) -> subprocess.Popen[bytes]:
        # A process group of its own, so that all of it can be ended.
        with self._log(job.name).open("wb") as log:
            return subprocess.Popen(
                [*DEFAULT_SIGNALS, *self._command(job)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"COVERAGE_FILE": str(self._folder / f"{job.name}.coverage")},
                process_group=0,
            )

    def _command(self, job: Job, *more: str) -> list[str]:
        if not job.pytest:
            return list(job.command)
        return [
            *(sys.executable, "-m", "pytest", "-o", f"cache_dir={self._folder / job.name}.cache"),
            *("-o", "junit_family=xunit1", "-o", "junit_duration_report=total"),
            f"--junitxml={self._folder / job.name}.xml",
            *self._options, *job.pytest, *more,
        ]  # fmt: skip

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _result(self, job: Job, status: int, seconds: float, cpu: float) -> Result:
        result = Result(job.name, status, seconds / 60, cpu / 60, self._log(job.name))
        report = self._folder / f"{job.name}.xml"
        if job.pytest and report.exists():
            cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 (pytest wrote it)
            result.tests = len(cases)
            result.slowest = sorted(map(_taken, cases), reverse=True)
            result.skipped = [skip.get("message") or "" for case in cases for skip in case.findall("skipped")]
            if status == NO_TESTS:
                result.status = 0
        return result

    def _try_again(self, jobs: Sequence[Job], results: list[Result]) -> None:
        by_name = {job.name: job for job in jobs}
        failed = {
            result.name: self._failed(result)
            for result in results
            if result.status == FAILED and by_name[result.name].pytest
        }
        count = sum(map(len, failed.values()))
        if count > SECOND_TRIES:
            print(f"{count} tests failed, more than {SECOND_TRIES}: no second try.", flush=True)
            return
        for result in results:
            if not failed.get(result.name):
                continue
            print(f"\nA second try for:\n{chr(10).join(failed[result.name])}", flush=True)
            again = subprocess.run(self._command(by_name[result.name], "--last-failed"), check=False)
            if again.returncode == 0:
                result.status, result.second_try = 0, failed[result.name]

    def _failed(self, result: Result) -> list[str]:
        kept = self._folder / f"{result.name}.cache" / "v" / "cache" / "lastfailed"
        return list(json.loads(kept.read_text())) if kept.exists() else []


def summary(results: Sequence[Result], *, slowest: int = 25) -> str:
    lines = ["", f"{'minutes':>8} {'CPU':>6} {'tests':>6}  job"]
    lines += [f"{result.minutes:8.1f} {result.cpu_minutes:6.1f} {result.tests:6}  {result.name}" for result in results]
    tests = sorted((test for result in results for test in result.slowest), reverse=True)[:slowest]
    lines += ["", f"The {len(tests)} slowest tests:", f"{'seconds':>8} {'CPU':>6}  test"]
    lines += [f"{seconds:8.1f} {cpu:6.1f}  {name}" for seconds, cpu, name in tests]
    for result in results:
        lines += [f"PASSED ONLY AT THE SECOND TRY: {name}" for name in result.second_try]
    return "\n".join(lines)


def missing_parts(results: Sequence[Result]) -> list[str]:
    """Why tests were skipped, but for the parts that cannot be had every day."""
    return [reason for result in results for reason in result.skipped if not reason.startswith(UNAVAILABLE)]


def _taken(case: ET.Element) -> tuple[float, float, str]:
    cpu = next((entry.get("value", "0") for entry in case.iter("property") if entry.get("name") == "cpu"), "0")
    return float(case.get("time", "0")), float(cpu), f"{case.get('classname')}::{case.get('name')}"


def _copy(log: Path) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(log.read_bytes())
    sys.stdout.flush()

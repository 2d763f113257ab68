"""A guarded command: its exit code is the guard's, and nothing of it outlives its guard or its owner."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_rl.core import process_guard

READY = "print('ready', flush=True); "
SLEEP = READY + "import time; time.sleep(300)"
DAEMON = "import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True); "
STUBBORN = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
POLITE = """
import signal, time
try:
    print('ready', flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    raise SystemExit(5)
"""


class Guarded:
    """Guards of commands that carry this test's mark in their environment."""

    def __init__(self, mark: Path) -> None:
        self._environ = {**os.environ, "GUARDED_BY_TEST": str(mark)}
        self._wanted = f"GUARDED_BY_TEST={mark}\0".encode()

    def __call__(self, code: str, *, grace: float = 0.0, report: bool = False) -> "subprocess.Popen[bytes]":
        argv = process_guard.guard_argv([sys.executable, "-c", code], grace=grace, report=report)
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=self._environ)

    def processes(self) -> list[int]:
        found = []
        for place in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self._wanted in place.read_bytes() + b"\0":
                    found.append(int(place.parent.name))
            except OSError:
                continue
        return found

    def wait_for(self, processes: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.processes()) != processes:
            assert time.monotonic() < deadline, self.processes()
            time.sleep(0.05)


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


def close_lifeline(guard: "subprocess.Popen[bytes]") -> None:
    assert guard.stdin is not None
    guard.stdin.close()


def test_the_commands_exit_code_is_the_guards(guarded: Guarded) -> None:
    with guarded("raise SystemExit(7)") as guard:
        assert guard.wait(30) == 7


def test_a_signal_that_ended_the_command_is_told_as_a_shell_tells_it(guarded: Guarded) -> None:
    with guarded("import os, signal; os.kill(os.getpid(), signal.SIGUSR1)") as guard:
        assert guard.wait(30) == 128 + signal.SIGUSR1


@pytest.mark.parametrize("end", [close_lifeline, subprocess.Popen.kill])
def test_the_command_ends_with_its_lifeline_and_with_its_guard(
    guarded: Guarded, end: Callable[["subprocess.Popen[bytes]"], None]
) -> None:
    with guarded(SLEEP) as guard:
        guarded.wait_for(2)
        end(guard)
        guarded.wait_for(0)


def test_a_daemon_in_a_session_of_its_own_ends_with_the_lifeline(guarded: Guarded) -> None:
    with guarded(DAEMON + SLEEP) as guard:
        guarded.wait_for(3)
        close_lifeline(guard)
        guarded.wait_for(0)


def test_a_daemon_does_not_outlive_the_command(guarded: Guarded) -> None:
    with guarded(DAEMON) as guard:
        assert guard.wait(30) == 0
        assert not guarded.processes()


def test_with_a_grace_the_command_may_clean_up(guarded: Guarded) -> None:
    with guarded(POLITE, grace=20) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        close_lifeline(guard)
        assert guard.wait(15) == 5


def test_a_command_that_ignores_its_grace_is_killed(guarded: Guarded) -> None:
    with guarded(STUBBORN + SLEEP, grace=0.5) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        close_lifeline(guard)
        assert guard.wait(15) == 128 + signal.SIGKILL


def test_pid_and_exit_code_are_reported_apart_from_the_output(guarded: Guarded) -> None:
    with guarded("import os; print(os.getpid()); raise SystemExit(3)", report=True) as guard:
        assert guard.stdout is not None and guard.stderr is not None
        pid, ended = map(json.loads, guard.stdout)
        output = guard.stderr.read()
    assert (pid, ended) == ({"pid": int(output)}, {"exit_code": 3})


def test_nothing_is_left_when_the_owner_is_killed_and_another_holds_its_lifeline(guarded: Guarded) -> None:
    """A fork of the owner inherits its end of the lifeline."""
    argv = process_guard.guard_argv([sys.executable, "-c", DAEMON + SLEEP])
    program = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen({argv!r}, stdin=subprocess.PIPE)\n"
        "if holder := os.fork(): print(holder, flush=True)\n"
        "time.sleep(300)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], env=guarded._environ, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        guarded.wait_for(5)
        owner.kill()
        guarded.wait_for(1)
    finally:
        os.killpg(owner.pid, signal.SIGKILL)
        owner.communicate()


def test_a_command_that_is_not_there_says_so() -> None:
    argv = process_guard.guard_argv(["/no/such/program"])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as guard:
        assert guard.stderr is not None
        assert b"/no/such/program could not be started" in guard.stderr.read()
        assert guard.wait(30) == process_guard.START_FAILED

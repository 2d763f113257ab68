"""A guarded command: its exit code is the guard's, and it ends with its guard and with its owner's input."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes_rl.orchestration.inference_test import parent_guard
from tests.orchestration.inference_test.parts import processes_of

SLEEP = "import time; time.sleep(300)"


def guarded(code: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", parent_guard.__file__, sys.executable, "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)


def wait_for(home: Path, processes: int) -> None:
    deadline = time.monotonic() + 30
    while len(processes_of(home)) != processes:
        assert time.monotonic() < deadline, processes_of(home)
        time.sleep(0.05)


def test_the_commands_exit_code_is_the_guards() -> None:
    with guarded("raise SystemExit(7)") as guard:
        assert guard.wait(30) == 7


@pytest.mark.parametrize("way", ["input ends", "guard is killed"])
def test_the_command_ends_when(way: str, home: Path) -> None:
    with guarded(SLEEP) as guard:
        assert guard.stdin is not None
        wait_for(home, 2)
        if way == "input ends":
            guard.stdin.close()
        else:
            guard.kill()
        wait_for(home, 0)

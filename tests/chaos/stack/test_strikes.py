"""Faults on real processes, begun and taken back."""

import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from hermes_rl.core.process_identity import ProcessIdentity
from tests.chaos.stack.clocks import Clocks
from tests.chaos.stack.scene import Scene
from tests.chaos.stack.schedule import Fault, Form, Kind
from tests.chaos.stack.strikes import MissedError, strike
from tests.chaos.trajectory.grounds import Disk


class Alone:
    """A scene of one process."""

    def __init__(self, process: ProcessIdentity, place: Path) -> None:
        self.process = process
        self.clocks = Clocks(place)

    def living(self, _target: str, _draw: random.Random) -> ProcessIdentity:
        return self.process


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def struck(form: Form, process: ProcessIdentity, place: Path, wait: list[str], *, broken: bool = False) -> None:
    """`wait` is told in which state the process is while the fault lasts."""

    def bear(_seconds: float) -> None:
        # A signal is heeded when its turn has come.
        end = time.monotonic() + 10
        while form is Form.PAUSE and state(process.pid) != "T" and time.monotonic() < end:
            time.sleep(0.01)
        wait.append(state(process.pid) + clock(place))
        if broken:
            raise RuntimeError("the chaos ends here")

    fault = Fault(0, 0.0, Kind(form, "api"), 1.0, 3600.0)
    strike(cast("Scene", Alone(process, place)), Disk(place), fault, random.Random(0), bear)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def clock(place: Path) -> str:
    path = place / "api.clock"
    return path.read_text().strip() if path.exists() else ""


def test_a_killed_process_is_dead(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    struck(Form.KILL, ProcessIdentity.from_pid(sleeper.pid), tmp_path, [])
    assert sleeper.wait(10) == -9


@pytest.mark.parametrize("broken", [False, True])
def test_a_paused_process_goes_on_afterwards(sleeper: subprocess.Popen[bytes], tmp_path: Path, broken: bool) -> None:
    seen: list[str] = []
    try:
        struck(Form.PAUSE, ProcessIdentity.from_pid(sleeper.pid), tmp_path, seen, broken=broken)
    except RuntimeError:
        assert broken
    assert seen == ["T"]
    sleeper.terminate()
    assert sleeper.wait(10) == -15


@pytest.mark.parametrize("broken", [False, True])
def test_a_clock_is_right_again_afterwards(sleeper: subprocess.Popen[bytes], tmp_path: Path, broken: bool) -> None:
    seen: list[str] = []
    try:
        struck(Form.FORWARD, ProcessIdentity.from_pid(sleeper.pid), tmp_path, seen, broken=broken)
    except RuntimeError:
        assert broken
    assert seen[0].endswith("+3600")
    assert clock(tmp_path) == "+0"


def test_nobody_is_struck_where_nobody_is(tmp_path: Path) -> None:
    with pytest.raises(MissedError):
        struck(Form.KILL, ProcessIdentity(0, ""), tmp_path, [])

"""The loop of a driver and the writing of its state."""

import os
from pathlib import Path

import pytest

from hermes_rl.orchestration.reconciler.driver import StateWriter, drive


def test_a_failed_tick_is_reported_and_the_next_one_follows(tmp_path: Path) -> None:
    lock = tmp_path / "driver.lock"
    lock.touch()
    results: list[bool | Exception] = [False, ValueError("once"), True]
    errors: list[Exception] = []

    def tick() -> bool:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    drive(tick, lock, 0.05, errors.append)
    assert [str(error) for error in errors] == ["once"]


def test_what_the_error_handler_raises_ends_the_loop(tmp_path: Path) -> None:
    def tick() -> bool:
        raise ValueError("always")

    def on_error(error: Exception) -> None:
        raise error

    with pytest.raises(ValueError, match="always"):
        drive(tick, tmp_path / "driver.lock", 0.05, on_error)


def test_every_tick_is_a_heartbeat_on_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "driver.lock"
    lock.touch()
    os.utime(lock, (1.0, 1.0))
    drive(lambda: True, lock, 0.05, lambda error: None)
    assert lock.stat().st_mtime > 1.0


def test_a_state_is_written_when_it_changed_and_again_after_a_failure() -> None:
    written: list[int] = []
    reports: list[str] = []

    def write(state: int) -> None:
        if state == 2 and not reports:
            raise OSError("the disk is full")
        written.append(state)

    writer = StateWriter(write, reports.append)
    for state in (1, 1, 2, 2, 2):
        writer.put(state)
    assert written == [1, 2]
    assert reports == ["cannot write the state: the disk is full"]

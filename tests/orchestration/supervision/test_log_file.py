"""A part's log."""

import os
from pathlib import Path

import pytest

from hermes_rl.orchestration.supervision.shim import LogFile


def test_a_log_is_moved_aside_by_its_size(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs" / "api.log", max_bytes=100, files=3)
    for number in range(60):
        log.write(f"line {number:03}\n".encode())
    log.close()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["api.log", "api.log.1", "api.log.2"]
    assert (tmp_path / "logs" / "api.log").read_text().endswith("line 059\n")
    assert all(path.stat().st_size <= 110 for path in (tmp_path / "logs").iterdir())


def test_lines_that_found_no_room_are_counted_and_told_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogFile(tmp_path / "api.log", max_bytes=1000, files=2)
    log.write(b"first\n")
    with monkeypatch.context() as full:

        def no_room(*_: object) -> int:
            raise OSError(28, "No space left on device")

        full.setattr(os, "write", no_room)
        log.write(b"lost\nlost too\n")
    log.write(b"last\n")
    log.close()
    assert log.dropped == 2
    assert (tmp_path / "api.log").read_text() == "first\n[2 lines were not written: the disk was full]\nlast\n"

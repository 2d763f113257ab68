"""Documents that are written over and over."""

import json
import os
from pathlib import Path

import pytest

from hermes_rl.orchestration.atomic_json import BLOCK, read_atomic_json, write_atomic_json


def test_what_was_written_last_is_read(tmp_path: Path) -> None:
    for number in range(5):
        write_atomic_json(tmp_path / "a.json", {"number": number})
        assert read_atomic_json(tmp_path / "a.json") == {"number": number}


def test_a_document_that_was_never_written_is_none(tmp_path: Path) -> None:
    assert read_atomic_json(tmp_path / "a.json") is None


def test_any_reader_of_json_reads_it(tmp_path: Path) -> None:
    write_atomic_json(tmp_path / "a.json", {"words": "größer"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"words": "größer"}


def test_a_short_document_after_a_long_one_is_whole(tmp_path: Path) -> None:
    write_atomic_json(tmp_path / "a.json", {"text": "x" * 3 * BLOCK})
    write_atomic_json(tmp_path / "a.json", {"text": "x"})
    write_atomic_json(tmp_path / "a.json", {"text": "y"})
    assert read_atomic_json(tmp_path / "a.json") == {"text": "y"}


def test_writing_again_asks_the_disk_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic_json(path, {"number": 0})
    files = {(tmp_path / name).stat().st_ino for name in os.listdir(tmp_path)}
    for number in range(4):
        write_atomic_json(path, {"number": number})
    assert {(tmp_path / name).stat().st_ino for name in os.listdir(tmp_path)} == files


@pytest.mark.parametrize("kept", ["spare", "none"])
def test_a_writer_that_was_killed_between_its_steps_hinders_nobody(tmp_path: Path, kept: str) -> None:
    path = tmp_path / "a.json"
    write_atomic_json(path, {"number": 1})
    os.link(path, tmp_path / "a.json.held")
    if kept == "none":
        (tmp_path / "a.json.spare").replace(path)
    write_atomic_json(path, {"number": 2})
    assert read_atomic_json(path) == {"number": 2}
    assert not (tmp_path / "a.json.held").exists()

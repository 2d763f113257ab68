"""A file that is replaced is never half written."""

from pathlib import Path

import pytest

from hermes_rl.core.replace_file import replace_file


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "cheats.py"
    replace_file(path, "one")
    replace_file(path, "two")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("cheats.py", "two")]


def test_a_failed_write_keeps_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "cheats.py"
    replace_file(path, "one")
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "two \udc80")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("cheats.py", "one")]


def test_who_opened_the_file_before_reads_all_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "cheats.py"
    replace_file(path, "one" * 10_000)
    with path.open() as before:
        replace_file(path, "two")
        assert before.read() == "one" * 10_000

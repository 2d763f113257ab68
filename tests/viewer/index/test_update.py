"""An index follows its file: growing, torn, replaced, and after a process that was killed."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hermes_rl.core import fast_json
from hermes_rl.viewer.index import update
from hermes_rl.viewer.index.lock import EXIT_LOCKED, try_lock
from hermes_rl.viewer.index.schema import open_for_reading, open_for_writing, open_in_memory
from hermes_rl.viewer.index.update import index_file, preview_file
from hermes_rl.viewer.index.writer import read_facts
from tests.viewer.recording import group, rollout, until, write_lines


@pytest.fixture
def index(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_for_writing(tmp_path / "view" / "index.db")) as connection:
        yield connection


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "a.jsonl", *(group(number) for number in range(10)))


def numbers(index: sqlite3.Connection) -> list[int]:
    return [number for (number,) in index.execute("SELECT n FROM groups ORDER BY n")]


def rowids(index: sqlite3.Connection, word: str) -> int:
    [(count,)] = index.execute("SELECT COUNT(*) FROM (SELECT rowid FROM words WHERE words MATCH ?)", (word,))
    return int(count)


def test_what_is_appended_is_added(index: sqlite3.Connection, file: Path) -> None:
    index_file(index, file)
    write_lines(file, group(10))
    assert index_file(index, file)
    assert numbers(index) == list(range(1, 12))
    assert read_facts(index)["rollouts"] == 22


def test_nothing_new_changes_nothing(index: sqlite3.Connection, file: Path) -> None:
    index_file(index, file)
    before = read_facts(index)
    assert not index_file(index, file)
    assert read_facts(index) == before


def test_a_torn_line_is_indexed_once_it_is_whole(index: sqlite3.Connection, file: Path) -> None:
    line = fast_json.dumps(group(10)) + b"\n"
    write_lines(file, line[:50])
    index_file(index, file)
    assert len(numbers(index)) == 10
    assert read_facts(index)["seen"] == file.stat().st_size
    write_lines(file, line[50:])
    index_file(index, file)
    assert numbers(index)[-1] == 11


def test_a_broken_line_is_counted_and_the_rest_is_there(index: sqlite3.Connection, file: Path) -> None:
    write_lines(file, b"nonsense\n", group(11))
    index_file(index, file)
    assert read_facts(index)["broken"] == 1
    assert numbers(index)[-1] == 12


def test_another_file_in_its_place_is_indexed_anew(index: sqlite3.Connection, file: Path) -> None:
    index_file(index, file)
    file.write_bytes(b"")
    write_lines(file, group(99, rollout(0, 0.5, "zebra")))
    index_file(index, file)
    assert numbers(index) == [1]
    assert rowids(index, "zebra") == 1
    assert rowids(index, "hello") == 0


def test_an_empty_file_is_indexed_when_it_grows(index: sqlite3.Connection, tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.touch()
    index_file(index, file)
    write_lines(file, group(0))
    index_file(index, file)
    assert numbers(index) == [1]


def test_batches_come_to_the_same(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = open_in_memory(), open_in_memory()
    index_file(whole, file)
    monkeypatch.setattr(update, "FIRST_GROUPS", 1)
    monkeypatch.setattr(update, "BATCH_GROUPS", 3)
    while index_file(parts, file, batches=1):
        pass
    for table in ("groups", "rollouts", "tools"):
        sql = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert whole.execute(sql).fetchall() == parts.execute(sql).fetchall()
    assert read_facts(whole) == read_facts(parts)
    whole.close()
    parts.close()


def test_the_head_is_an_index_of_the_first_groups(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "FIRST_GROUPS", 3)
    with closing(open_in_memory(preview_file(file))) as head:
        assert numbers(head) == [1, 2, 3]


def test_an_index_of_another_version_is_made_anew(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "view" / "other.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")
        other.execute("CREATE TABLE groups (n)")
    with closing(open_for_writing(path)) as index:
        index_file(index, file)
        assert len(numbers(index)) == 10


def test_a_file_that_is_no_database_is_made_anew(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "view" / "other.db"
    path.parent.mkdir()
    path.write_bytes(b"nothing of the kind" * 1000)
    assert open_for_reading(path) is None
    with closing(open_for_writing(path)) as index:
        index_file(index, file)
        assert len(numbers(index)) == 10


def test_only_its_owner_can_look_into_the_folder_of_indexes(tmp_path: Path, index: sqlite3.Connection) -> None:
    assert (tmp_path / "view").stat().st_mode & 0o077 == 0


@contextmanager
def indexing(index: Path, file: Path, followed: float = 0.0) -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen([sys.executable, "-m", "hermes_rl.viewer.index"], stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(fast_json.dumps({"index": str(index), "file": str(file), "followed": followed}) + b"\n")
        process.stdin.flush()
        yield process


def index_to_its_end(index: Path, file: Path) -> int:
    with indexing(index, file) as process:
        return process.wait(200)


def indexed(path: Path) -> int:
    index = open_for_reading(path)
    if index is None:
        return 0
    with closing(index):
        return int(read_facts(index).get("groups") or 0)


def test_a_killed_indexer_is_taken_up_where_it_was(tmp_path: Path) -> None:
    file, path = tmp_path / "many.jsonl", tmp_path / "view" / "index.db"
    count = 3_000
    write_lines(file, *(group(number, rollout(0, 0.5, f"word{number} " * 50)) for number in range(count)))
    with indexing(path, file) as process:
        until(lambda: indexed(path) > 0)
        os.kill(process.pid, signal.SIGKILL)
    before = indexed(path)
    assert before < count
    assert index_to_its_end(path, file) == 0
    assert indexed(path) == count
    with closing(open_for_writing(path)) as index:
        assert [rowids(index, f"word{number}") for number in (0, before - 1, before, count - 1)] == [1, 1, 1, 1]


def test_of_two_indexers_one_works(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "view" / "index.db"
    with try_lock(path.with_suffix(".lock")) as mine:
        assert mine
        assert index_to_its_end(path, file) == EXIT_LOCKED
        assert not path.exists()
    assert index_to_its_end(path, file) == 0
    assert indexed(path) == 10


def test_an_indexer_follows_a_file_that_grows(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "view" / "index.db"
    with indexing(path, file, followed=60.0):
        until(lambda: indexed(path) == 10)
        write_lines(file, group(10))
        until(lambda: indexed(path) == 11)


def test_an_indexer_ends_with_the_viewer_that_started_it(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "view" / "index.db"
    with indexing(path, file, followed=300.0) as process:
        until(lambda: indexed(path) == 10)
        assert process.stdin
        process.stdin.close()
        assert process.wait(60) == 0

"""An index that is made whole by who needs it, alone or beside others who work on it."""

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.viewer.index.build_sync import build_index
from hermes_rl.viewer.index.lock import try_lock
from hermes_rl.viewer.index.schema import index_path, open_for_reading, open_for_writing
from hermes_rl.viewer.index.update import index_file
from hermes_rl.viewer.index.writer import read_facts
from hermes_rl.viewer.sources.source import RecordSource, groups_source
from tests.viewer.recording import group, rollout, until, write_lines

GROUPS = 120


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordSource:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    one = rollout(0, 0.5)
    return groups_source(write_lines(tmp_path / "a.jsonl", *(group(number, one) for number in range(GROUPS))))


def indexed(source: RecordSource) -> int:
    connection = open_for_reading(index_path(source.identity))
    assert connection is not None
    with closing(connection):
        return int(read_facts(connection)["groups"])


def test_it_holds_all_when_it_returns_and_tells_how_far_it_is(source: RecordSource) -> None:
    told: list[tuple[int, int]] = []
    build_index(source, None, lambda done, total: told.append((done, total)))
    assert indexed(source) == GROUPS
    assert 0 < told[0][0] < told[0][1]


def test_what_is_there_already_is_not_made_again(source: RecordSource) -> None:
    build_index(source, None, lambda *_: None)
    before = index_path(source.identity).stat().st_mtime_ns
    build_index(source, None, lambda *_: None)
    assert index_path(source.identity).stat().st_mtime_ns == before


def test_a_torn_last_line_is_not_waited_for(source: RecordSource) -> None:
    assert source.file is not None
    with source.file.open("ab") as file:
        file.write(b'{"rollouts": [')
    build_index(source, None, lambda *_: None)
    assert indexed(source) == GROUPS


def test_who_comes_second_waits_for_the_one_that_writes(source: RecordSource) -> None:
    assert source.file is not None
    path = index_path(source.identity)
    ended: list[float] = []

    def second() -> None:
        build_index(source, None, lambda *_: None)
        ended.append(time.monotonic())

    with try_lock(path.with_suffix(".lock")) as mine:
        assert mine
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.5)
        assert ended == []
        with closing(open_for_writing(path)) as connection:
            index_file(connection, source.file)
        until(lambda: ended)
    waiting.join()
    assert indexed(source) == GROUPS


def test_a_home_that_cannot_be_written_to_is_told(source: RecordSource, tmp_path: Path) -> None:
    (tmp_path / "home" / "rl").mkdir(parents=True)
    (tmp_path / "home" / "rl" / "view").write_text("a file where a folder should be")
    with pytest.raises(ConfigError, match="cannot be indexed"):
        build_index(source, None, lambda *_: None)

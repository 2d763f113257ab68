from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.status import logs
from hermes_rl.orchestration.status.logs import log_lines
from tests.support.recorded_runs import make_run, write_log


def test_the_last_lines_are_shown() -> None:
    write_log(make_run(), "trainer", "one\ntwo\nthree\n")
    assert log_lines("r1", "trainer", 2) == "two\nthree"


def test_what_was_rotated_away_comes_before() -> None:
    places = make_run()
    write_log(places, "env", "e\nf\n")
    write_log(places, "env", "c\nd\n", rotated=1)
    write_log(places, "env", "a\nb\n", rotated=2)
    assert log_lines("r1", "env", 5).split() == ["b", "c", "d", "e", "f"]


def test_a_log_that_is_not_there_yet_is_empty() -> None:
    make_run()
    assert log_lines("r1", "api", 10) == ""


def test_a_part_that_is_none_is_refused_with_those_there_are() -> None:
    places = make_run()
    write_log(places, "export", "done\n")
    with pytest.raises(ConfigError, match="no part 'envs'; it has api, trainer, env, supervisor, export"):
        log_lines("r1", "envs", 10)


def test_no_lines_cannot_be_shown() -> None:
    make_run()
    with pytest.raises(ConfigError, match="ask for 1 or more"):
        log_lines("r1", "api", 0)


def test_a_large_log_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_log(make_run(), "api", "x" * 99 + "\n")
    with path.open("ab") as file:
        file.truncate(10 * 2**30)
        file.seek(0, 2)
        file.write(b"\nlast\n")
    monkeypatch.setattr(logs, "MAX_BYTES", 2**20)
    assert log_lines("r1", "api", 1) == "last"
    assert len(log_lines("r1", "api", 10)) <= 2**20 + logs.CHUNK


def test_bytes_that_are_no_text_are_shown_as_such(home: Path) -> None:
    path = write_log(make_run(), "api", "")
    path.write_bytes(b"\xff\xfe broken\n")
    assert log_lines("r1", "api", 1).endswith("broken")
    assert path.is_relative_to(home)

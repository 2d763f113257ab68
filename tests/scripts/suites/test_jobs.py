"""Jobs run side by side; a test that fails once is tried again alone and named, one that fails twice fails."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.suites.jobs import Job, Result, Runner, missing_parts, summary

LATE_ONCE = """
from pathlib import Path

def test_late():
    mark = Path(__file__).with_name("been")
    been = mark.exists()
    mark.touch()
    assert been

def test_fine():
    pass
"""


def run(folder: Path, *codes: str, width: int = 2, passed: Callable[[Result], object] = lambda _: None) -> list[Result]:
    jobs = []
    for number, code in enumerate(codes):
        (folder / f"part{number}").mkdir()
        (folder / f"part{number}" / "test_it.py").write_text(code)
        jobs.append(Job(f"job{number}", ("-q", "-c", "/dev/null", str(folder / f"part{number}"))))
    (folder / "out").mkdir()
    return Runner(folder / "out", width=width).run(jobs, passed)


def test_a_test_that_passes_at_the_second_try_is_named(tmp_path: Path) -> None:
    (result,) = run(tmp_path, LATE_ONCE)
    assert result.status == 0
    assert "PASSED ONLY AT THE SECOND TRY: test_it.py::test_late" in summary([result])


def test_what_fails_twice_fails(tmp_path: Path) -> None:
    (result,) = run(tmp_path, "def test_wrong():\n    assert False\n")
    assert result.status == 1 and result.second_try == []


def test_many_failures_at_once_have_no_second_try(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (result,) = run(tmp_path, "".join(f"def test_wrong_{number}():\n    assert False\n" for number in range(6)))
    assert result.status == 1
    assert "no second try" in capfd.readouterr().out


def test_each_job_has_its_tests_counted_and_timed(tmp_path: Path) -> None:
    one, two = sorted(run(tmp_path, "def test_a():\n    pass\n", LATE_ONCE), key=lambda result: result.name)
    assert (one.tests, two.tests) == (1, 2)
    assert one.minutes > 0 and one.slowest[0][2].endswith("::test_a")


def test_a_command_is_run_as_it_is(tmp_path: Path) -> None:
    jobs = [Job("yes", command=(sys.executable, "-c", "pass")), Job("no", command=(sys.executable, "-c", "exit(3)"))]
    assert {result.name: result.status for result in Runner(tmp_path, width=1).run(jobs)} == {"yes": 0, "no": 3}


def test_a_skipped_test_is_a_missing_part_but_for_what_cannot_be_had_every_day(tmp_path: Path) -> None:
    code = "import pytest\n" + "".join(
        f"def test_{number}():\n    pytest.skip({reason!r})\n"
        for number, reason in enumerate(["NO RUNSC: not today", "no dockerd"])
    )
    assert missing_parts(run(tmp_path, code)) == ["no dockerd"]


def test_a_job_that_is_ended_ends_its_servers(tmp_path: Path) -> None:
    server = f"""
import time
from pathlib import Path
import pytest

@pytest.fixture
def server():
    Path({str(tmp_path)!r}, "begun").touch()
    yield
    Path({str(tmp_path)!r}, "ended").touch()

def test_long(server):
    time.sleep(100)
"""
    other = f"""
import time
from pathlib import Path

def test_short():
    while not Path({str(tmp_path)!r}, "begun").exists():
        time.sleep(0.05)
"""

    def interrupted(_: Result) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, server, other, passed=interrupted)
    assert (tmp_path / "ended").exists()

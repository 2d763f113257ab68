"""A test that is late once fails nothing; one that fails twice does, and so do many at once."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
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


def tried(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(code)
    cache = folder / "cache"
    first = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-o", f"cache_dir={cache}", str(folder)]
    assert subprocess.run(first, cwd=folder, capture_output=True, check=False, timeout=100).returncode == 1
    script = f'source {ROOT}/scripts/second_try.sh; python() {{ {sys.executable} "$@"; }}; second_try "$@"'
    words = ["bash", "-c", script, "bash", str(cache), "-q", "-c", "/dev/null", str(folder)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=100)


def test_what_failed_passes_when_it_passes_at_the_second_try_and_is_named(tmp_path: Path) -> None:
    again = tried(tmp_path, LATE_ONCE)
    assert again.returncode == 0
    assert "1 passed" in again.stdout
    assert "PASSED ONLY AT THE SECOND TRY: test_it.py::test_late" in again.stdout


def test_what_fails_twice_fails(tmp_path: Path) -> None:
    again = tried(tmp_path, "def test_wrong():\n    assert False\n")
    assert again.returncode == 1
    assert "PASSED ONLY" not in again.stdout


def test_many_failures_at_once_have_no_second_try(tmp_path: Path) -> None:
    again = tried(tmp_path, "".join(f"def test_wrong_{number}():\n    assert False\n" for number in range(6)))
    assert again.returncode == 1
    assert "no second try" in again.stderr
    assert "test session" not in again.stdout

"""Files that cannot be read are listed with why and where; folders that never end do end."""

import errno
import os
from pathlib import Path

import pytest

from hermes_rl.orchestration.discovery.discover import discover, python_files
from hermes_rl.orchestration.discovery.source import MAX_FILE_BYTES
from tests.orchestration.discovery.writing import written

GOOD = "from hermes_rl import HermesAgentBaseEnv\nclass Good(HermesAgentBaseEnv):\n    METHODS\n"


@pytest.mark.parametrize(
    ("content", "why", "line"),
    [
        (b"x = 1\ndef f(:\n", "syntax error: invalid syntax", 2),
        (b"if 1:\nx = 1\n", "syntax error (IndentationError): expected an indented block", 2),
        (b"if 1:\n\tx = 1\n        y = 1\n", "syntax error (TabError)", 3),
        (b"print 'two'\n", "syntax error: Missing parentheses", 1),
        (b"x = 1\ny = '\xff\xfe'\n", "not UTF-8", 2),
        (b"# coding: klingon\n", "syntax error: unknown encoding", None),
        (b"x = 1\n\ny\0 = 1\n", "null bytes", 3),
        (b"x = " + b"(" * 5000 + b")" * 5000, "too many nested parentheses", 1),
        (b"x = " + b"-" * 100_000 + b"1", "nested too deep", None),
        (b"x = " + b"1 + " * 100_000 + b"1", "nested too deep", None),
        (b"# " + b"x" * MAX_FILE_BYTES, "larger than 2 MB", None),
    ],
)  # fmt: skip
def test_a_file_that_is_no_python_is_told(tmp_path: Path, content: bytes, why: str, line: int | None) -> None:
    (tmp_path / "bad_env.py").write_bytes(content)
    written(tmp_path, {"good_env.py": GOOD})
    discovery = discover([tmp_path])
    assert [one.name for one in discovery.found] == ["good"]
    (broken,) = discovery.broken
    assert broken.file == tmp_path / "bad_env.py"
    assert why in broken.why
    assert broken.line == line


def test_other_encodings_that_a_file_declares_are_read(tmp_path: Path) -> None:
    (tmp_path / "a_env.py").write_bytes(b"# coding: latin-1\nX = '\xe9'\n" + GOOD.replace("METHODS", "...").encode())
    (broken,) = discover([tmp_path]).broken
    assert "lacks format_prompt" in broken.why


def test_a_file_with_odd_escapes_is_read_without_a_warning(tmp_path: Path) -> None:
    written(tmp_path, {"a_env.py": f"X = '\\d'\n{GOOD}"})
    assert len(discover([tmp_path]).found) == 1


def test_a_pipe_and_a_link_to_nowhere_do_not_hold_it_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "lost.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "itself.py").symlink_to(tmp_path / "itself.py")
    told = {one.file.name: one.why for one in discover([tmp_path]).broken}
    assert told["pipe.py"] == "not a regular file"
    assert told["nowhere.py"] == "cannot be read: No such file or directory"
    assert "itself.py" in told


def test_a_file_without_permission_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))

    monkeypatch.setattr("hermes_rl.orchestration.discovery.source._content", refused)
    written(tmp_path, {"a_env.py": GOOD})
    assert discover([tmp_path]).broken[0].why == "cannot be read: Permission denied"


def test_links_in_a_circle_are_entered_once(tmp_path: Path) -> None:
    written(tmp_path, {"a/good_env.py": GOOD})
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    discovery = discover([tmp_path, tmp_path / "b"])
    assert [one.name for one in discovery.found] == ["good"]
    assert discovery.notes == ()


@pytest.mark.parametrize("folder", [".venv", ".git", "node_modules", "__pycache__", "lib/site-packages", "venv"])
def test_folders_of_other_peoples_files_are_not_entered(tmp_path: Path, folder: str) -> None:
    written(tmp_path, {f"{folder}/inner/a_env.py": GOOD, "venv/pyvenv.cfg": ""})
    assert discover([tmp_path]).found == ()


def test_there_is_a_bound_on_files(tmp_path: Path) -> None:
    written(tmp_path, {f"{number}.py": "" for number in range(6)})
    *files, told = python_files(tmp_path, max_files=4)
    assert files == [tmp_path / f"{number}.py" for number in range(4)]
    assert "it has more than 4 Python files" in str(told)


def test_a_long_line_of_descent_in_one_file_is_followed(tmp_path: Path) -> None:
    lines = ["class C0(HermesAgentBaseEnv):\n    METHODS"] + [f"class C{n}(C{n - 1}): ..." for n in range(1, 1500)]
    written(tmp_path, {"long.py": "from hermes_rl import HermesAgentBaseEnv\n" + "\n".join(lines) + "\n"})
    assert len(discover([tmp_path]).found) == 1500


def test_a_class_that_python_would_refuse_is_told(tmp_path: Path) -> None:
    text = "class A: ...\nclass B(A): ...\nclass C(A, B): ...\n"
    (broken,) = discover([written(tmp_path, {"a.py": text})]).broken
    assert broken.line == 3
    assert "class C: Cannot create a consistent method resolution order" in broken.why

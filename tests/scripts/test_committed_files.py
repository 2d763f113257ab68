"""A file that is too large, or binary where none belongs, is refused before it is committed."""

import subprocess
from pathlib import Path

from scripts.committed_files import problems


def found(root: Path, path: str, content: bytes) -> list[str]:
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)
    return problems(root)


def test_a_file_over_a_megabyte_is_refused(tmp_path: Path) -> None:
    (problem,) = found(tmp_path, "docs/images/large.png", b"\x89PNG\0" * 300_000)
    assert problem.startswith("docs/images/large.png: 1.5 MB")


def test_a_binary_file_is_refused_outside_the_folders_for_them(tmp_path: Path) -> None:
    (problem,) = found(tmp_path, "tool.whl", b"PK\0\0")
    assert problem.startswith("tool.whl: a binary file")


def test_a_picture_among_the_pictures_is_fine(tmp_path: Path) -> None:
    assert found(tmp_path, "docs/images/small.png", b"\x89PNG\0") == []


def test_text_is_fine(tmp_path: Path) -> None:
    assert found(tmp_path, "notes.md", b"text") == []

"""scripts/hashes.py, and the files that it has written."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from scripts.hashes import is_wanted, pinned, problems

ROOT = Path(__file__).parents[2]
HASHED = [
    ROOT / "src/hermes_rl/training/engines/skyrl/skyrl.txt",
    ROOT / "src/hermes_rl/training/engines/skyrl/skyrl-cuda.txt",
    *sorted((ROOT / "src/hermes_rl/agent/harnesses/pins").glob("*.txt")),
    *(ROOT / "constraints" / f"{name}.txt" for name in ("atropos", "inspect", "verifiers")),
]


@pytest.mark.parametrize("path", HASHED, ids=lambda path: path.stem)
def test_every_pin_has_a_hash_and_no_line_names_an_address(path: Path) -> None:
    assert problems(path) == []
    assert "==" in path.read_text()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("a==1", "a==1 has no hash"),
        ("--index-url https://index.example", "an address or an option"),
        ("a @ https://index.example/a.whl", "an address or an option"),
        ("-e .", "an address or an option"),
    ],
)
def test_a_pin_without_a_hash_and_an_address_are_found(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "pins.txt"
    path.write_text(f"# comment\n{line}\n")
    assert any(problem in found for found in problems(path))


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("a-1.0-py3-none-any.whl", True),
        ("a-1.0-py2.py3-none-any.whl", True),
        ("a-1.0.tar.gz", True),
        ("a-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1.0-cp38-abi3-musllinux_1_2_aarch64.whl", True),
        ("a-1.0-cp313-cp313-macosx_11_0_arm64.whl", True),
        ("a-1.0-cp313-cp313t-macosx_11_0_arm64.whl", False),
        ("a-1.0-cp311-cp311-win_amd64.whl", False),
        ("a-1.0-cp310-cp310-manylinux2014_x86_64.whl", False),
        ("a-1.0-pp311-pypy311_pp73-manylinux2014_x86_64.whl", False),
        ("a-1.1-py3-none-any.whl", False),
        ("a-1.0.exe", False),
    ],
)
def test_files_for_supported_pythons_and_systems_are_kept(file: str, wanted: bool) -> None:
    assert is_wanted(file, "1.0") is wanted


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index of one project with two files of version 1."""
    digest = hashlib.sha256(b"x").hexdigest()
    (tmp_path / "the-part").mkdir()
    links = "".join(
        f'<a href="../../files/{name}#sha256={sha}">{name}</a>'
        for name, sha in (
            ("the_part-1-py3-none-any.whl", digest),
            ("the_part-1.tar.gz", "b" * 64),
            ("the_part-2-py3-none-any.whl", "c" * 64),
        )
    )
    (tmp_path / "the-part" / "index.html").write_text(f"<html>{links}</html>")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_each_pin_gets_the_hashes_of_its_version(index: str) -> None:
    lines = ["# kept", "The.Part==1 \\", "    --hash=sha256:old"]
    [comment, pin] = list(pinned(lines, index))
    digest = hashlib.sha256(b"x").hexdigest()
    assert comment == "# kept"
    assert pin.split(" \\\n    ") == ["The.Part==1", f"--hash=sha256:{digest}", f"--hash=sha256:{'b' * 64}"]


def test_a_version_that_the_index_does_not_have_is_named(index: str) -> None:
    with pytest.raises(SystemExit, match=r"no file of the-part 9"):
        list(pinned(["the-part==9"], index))

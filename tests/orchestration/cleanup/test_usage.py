"""Disk usage as `du` counts it, and the processes that use a path."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes_rl.orchestration.cleanup.plan import DiskItem, ItemKind
from hermes_rl.orchestration.cleanup.usage import holders, measure

MB = 10**6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "items" / "one"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(os.urandom(3 * MB))
    return folder


def size(*paths: Path) -> int:
    return measure(DiskItem(ItemKind.RUN, "one", paths)).bytes


def du(*paths: Path) -> int:
    said = subprocess.run(["du", "-s", "--total", "--block-size=1", *paths], stdout=subprocess.PIPE, check=True)
    return int(said.stdout.splitlines()[-1].split()[0])


def test_a_tree_takes_what_du_says(folder: Path) -> None:
    assert size(folder) == du(folder) > 3 * MB


def test_a_hard_link_takes_no_room_again(folder: Path) -> None:
    before = size(folder)
    (folder / "again").hardlink_to(folder / "deep" / "file")
    assert size(folder) == du(folder) < before + MB


def test_the_holes_of_a_sparse_file_take_no_room(folder: Path) -> None:
    before = size(folder)
    with (folder / "sparse").open("wb") as file:
        file.truncate(500 * MB)
    assert size(folder) == du(folder) < before + MB


def test_a_link_to_a_folder_outside_is_not_followed(folder: Path, tmp_path: Path) -> None:
    before = size(folder)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "large").write_bytes(os.urandom(3 * MB))
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    assert size(folder) < before + MB


def test_an_item_that_is_a_link_takes_only_the_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert size(tmp_path / "link") < MB


def test_the_newest_file_tells_the_last_use(folder: Path) -> None:
    for path in (folder / "deep" / "file", folder / "deep", folder):
        os.utime(path, (1000, 1000))
    os.utime(folder / "deep" / "file", (2000, 2000))
    assert measure(DiskItem(ItemKind.RUN, "one", (folder,))).last_used == 2000


def test_the_file_that_marks_a_use_tells_the_last_use(folder: Path) -> None:
    os.utime(folder, (1000, 1000))
    assert measure(DiskItem(ItemKind.IMAGE, "one", (folder,), used=folder)).last_used == 1000


@contextmanager
def process(*words: str, **options: object) -> Iterator[int]:
    """One that lives until the body ends, and has begun its program when it begins."""
    program = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options) as child:  # type: ignore[call-overload]  # of what a test adds
        child.stdout.readline()
        yield child.pid
        child.stdin.close()


def holder(folder: Path) -> str | None:
    return holders([DiskItem(ItemKind.RUN, "one", (folder,))]).get(folder)


def test_a_folder_that_nobody_uses_has_no_holder(folder: Path) -> None:
    with process(cwd=folder.parent):
        assert holder(folder) is None


def test_a_process_in_the_folder_holds_it(folder: Path) -> None:
    with process(cwd=folder / "deep") as pid:
        assert f"(process {pid})" in (holder(folder) or "")


def test_a_process_whose_arguments_name_a_file_in_it_holds_it(folder: Path) -> None:
    with process(f"--database=sqlite:///{folder}/deep/file") as pid:
        assert f"(process {pid})" in (holder(folder) or "")


def test_a_process_with_a_file_open_in_it_holds_it(folder: Path) -> None:
    with (folder / "deep" / "file").open("rb") as file, process(pass_fds=[file.fileno()]):
        assert holder(folder)


def test_a_process_that_names_the_folder_by_a_link_to_its_home_holds_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder.parent)
    with process(cwd=folder):
        assert holder(tmp_path / "link" / "one")


def test_a_process_of_a_virtual_environment_holds_it(folder: Path) -> None:
    with process(env={**os.environ, "VIRTUAL_ENV": str(folder)}):
        assert holder(folder)


def test_a_folder_whose_name_only_begins_alike_is_not_held(folder: Path) -> None:
    with process(f"{folder}-two"):
        assert holder(folder) is None

import os
from pathlib import Path

import pytest

from hermes_rl.sandbox.protocol import Sandbox

ODD_NAMES = [
    "plain",
    "with space",
    "ünïcødé/日本.txt",
    "-rf",
    "a'b\"c",
    "new\nline",
    "dir\n/in it",
    "$(touch pwned)",
    "*",
]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_any_file_name_round_trips(sandbox: Sandbox, name: str) -> None:
    await sandbox.write(name, name.encode())
    assert await sandbox.read(name) == name.encode()
    assert await sandbox.read(f"{sandbox.workspace}/{name}") == name.encode()


async def test_ten_megabytes_of_any_bytes_round_trip(sandbox: Sandbox) -> None:
    data = os.urandom(10 * 1024 * 1024)
    await sandbox.write("deep/er/blob", data)
    assert await sandbox.read("deep/er/blob") == data


async def test_an_empty_file_round_trips(sandbox: Sandbox) -> None:
    await sandbox.write("empty", b"")
    assert await sandbox.read("empty") == b""


async def test_reading_fails_as_for_a_local_file(sandbox: Sandbox) -> None:
    with pytest.raises(FileNotFoundError):
        await sandbox.read("missing")
    with pytest.raises(IsADirectoryError):
        await sandbox.read(sandbox.workspace)
    await sandbox.write("large", b"x" * 11)
    with pytest.raises(OSError, match="larger than 10"):
        await sandbox.read("large", max_bytes=10)


async def test_a_named_pipe_in_place_of_a_file_cannot_hang_the_reader(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo answer", timeout=10)
    with pytest.raises(OSError, match="not a regular file"):
        await sandbox.read("answer")
    with pytest.raises(OSError, match="not a regular file"):
        await sandbox.write("answer", b"x")


async def test_writing_where_it_is_not_allowed_is_an_os_error(sandbox: Sandbox) -> None:
    with pytest.raises(OSError, match="/proc/version"):
        await sandbox.write("/proc/version", b"x")


async def test_files_travel_to_and_from_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(b"data")
    await sandbox.upload(tmp_path / "up", "there")
    assert await sandbox.download("there", tmp_path / "new" / "down") == 4
    assert (tmp_path / "new" / "down").read_bytes() == b"data"

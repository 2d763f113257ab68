"""What read, write, upload and download promise: exact bytes, any name and size, errors like those of local files."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hermes_rl.sandbox.conformance.check import (
    BrokenPromiseError,
    Group,
    NotClaimedError,
    Trial,
    must,
    run,
    same,
    says,
)
from hermes_rl.sandbox.conformance.isolation import canaries
from hermes_rl.sandbox.protocol import Sandbox

GROUP = Group("files")

_LARGE = 20_000_000
_NAMES = ("two words", "two\nlines", "-n", "--help", "ünïcödé 漢字 🙂", 'it\'s "quoted"', "$HOME", "*", "a\\b", " ")


@GROUP.on_sandbox
async def files_are_exact(sandbox: Sandbox) -> None:
    """What is written is read back: all byte values, no final newline."""
    data = bytes(range(256)) * 300
    await sandbox.write("file", data)
    same("the file", await sandbox.read("file"), data)


@GROUP.on_sandbox
async def empty_file_is_empty(sandbox: Sandbox) -> None:
    """An empty file can be written and read."""
    await sandbox.write("file", b"")
    same("the file", await sandbox.read("file"), b"")
    await says(sandbox, "stat -c %s file", b"0\n")


@GROUP.on_sandbox
async def overwriting_leaves_no_rest(sandbox: Sandbox) -> None:
    """Writing a file again replaces all of it."""
    await sandbox.write("file", b"a long first text")
    await sandbox.write("file", b"short")
    same("the file", await sandbox.read("file"), b"short")


@GROUP.on_sandbox
async def commands_and_files_meet(sandbox: Sandbox) -> None:
    """Commands see and change what was written, and what they write can be read."""
    await sandbox.write("file", b"one\n")
    await says(sandbox, "echo two >> file && cat file", b"one\ntwo\n")
    same("the file", await sandbox.read("file"), b"one\ntwo\n")


@GROUP.on_sandbox
async def paths_are_from_the_workspace(sandbox: Sandbox) -> None:
    """A relative path is below the workspace, an absolute one is taken as it is."""
    await sandbox.write("a/b", b"here")
    same("the file by its absolute path", await sandbox.read(f"{sandbox.workspace}/a/b"), b"here")
    await sandbox.write(f"{sandbox.scratch}/c", b"there")
    await says(sandbox, "cat c", b"there", cwd=sandbox.scratch)


@GROUP.on_sandbox
async def parents_are_made(sandbox: Sandbox) -> None:
    """Writing makes the directories above a file."""
    await sandbox.write("a/b b/c/d/file", b"deep")
    await says(sandbox, "cat 'a/b b/c/d/file'", b"deep")


@GROUP.on_sandbox
async def any_name_will_do(sandbox: Sandbox) -> None:
    """Names with spaces, newlines, quotes, stars, accents and a leading dash are written and read."""
    for number, name in enumerate(_NAMES):
        await sandbox.write(name, b"%d" % number)
    for number, name in enumerate(_NAMES):
        same(f"the file named {name!r}", await sandbox.read(name), b"%d" % number)
    await says(sandbox, "ls -A | tr '\\n' ' ' | wc -w > /dev/null; find . -type f | wc -l", b"%d\n" % (len(_NAMES) + 1))


@GROUP.on_sandbox
async def missing_file_is_told(sandbox: Sandbox) -> None:
    """Reading what is not there is a FileNotFoundError."""
    await _raises(FileNotFoundError, sandbox, "no/such/file")


@GROUP.on_sandbox
async def directory_is_told(sandbox: Sandbox) -> None:
    """Reading a directory is an IsADirectoryError, and writing to one an OSError."""
    await run(sandbox, "mkdir directory")
    await _raises(IsADirectoryError, sandbox, "directory")
    await _cannot_write(sandbox, "directory")


@GROUP.on_sandbox
async def special_file_is_refused(sandbox: Sandbox) -> None:
    """Reading or writing a named pipe or a device is an OSError and does not hang."""
    await run(sandbox, "mkfifo pipe; ln -s /dev/zero endless")
    for name in ("pipe", "endless"):
        await _raises(OSError, sandbox, name)
        await _cannot_write(sandbox, name)


@GROUP.on_sandbox
async def forbidden_file_is_told(sandbox: Sandbox) -> None:
    """Reading a file that the user may not read is a PermissionError, and writing it an OSError."""
    await run(sandbox, "echo secret > file; chmod 000 file")
    if (await run(sandbox, "cat file")).exit_code == 0:
        raise NotClaimedError("commands run as a user who may read everything")
    await _raises(PermissionError, sandbox, "file")
    await _cannot_write(sandbox, "file")


@GROUP.on_sandbox
async def impossible_place_is_told(sandbox: Sandbox) -> None:
    """Writing where no file can be is an OSError."""
    await sandbox.write("file", b"x")
    await _cannot_write(sandbox, "file/below")
    await _cannot_write(sandbox, "/proc/no/such/place")


@GROUP.on_sandbox
async def size_limit_is_held(sandbox: Sandbox) -> None:
    """A file larger than max_bytes is an OSError; one of exactly that size is read."""
    await sandbox.write("file", bytes(1000))
    same("its length", len(await sandbox.read("file", max_bytes=1000)), 1000)
    try:
        data = await sandbox.read("file", max_bytes=999)
    except OSError:
        return
    raise BrokenPromiseError(f"{len(data)} bytes were read with max_bytes=999")


@GROUP.on_sandbox
async def write_takes_a_stream(sandbox: Sandbox) -> None:
    """A file can be written from pieces as they come."""
    await sandbox.write("file", _pieces(b"one ", b"two ", b"three"))
    same("the file", await sandbox.read("file"), b"one two three")


@GROUP.on_sandbox
async def large_files_travel_whole(sandbox: Sandbox) -> None:
    """20 MB are uploaded and downloaded byte for byte, and their size is told."""
    with _directory() as place:
        data = _filled(place / "up", _LARGE)
        same("the size uploaded", await sandbox.upload(place / "up", "large"), _LARGE)
        await says(sandbox, "stat -c %s large", b"%d\n" % _LARGE)
        same("the size downloaded", await sandbox.download("large", place / "new" / "down"), _LARGE)
        must(_content(place / "new" / "down") == data, "the file that came back differs")


@GROUP.on_sandbox
async def failed_download_leaves_no_file(sandbox: Sandbox) -> None:
    """A download of what is not there, or is a directory, is an error and leaves no local file."""
    await run(sandbox, "mkdir directory")
    with _directory() as place:
        for name, kind in (("missing", FileNotFoundError), ("directory", IsADirectoryError)):
            try:
                await sandbox.download(name, place / "file")
            except kind:
                must(not _entries(place), f"a download that failed left {_entries(place)}")
            else:
                raise BrokenPromiseError(f"a download of {name!r} succeeded")


@GROUP.on_sandbox
async def files_travel_side_by_side(sandbox: Sandbox) -> None:
    """Twenty files are written and read at once without mixing."""
    contents = {f"file{number}": os.urandom(100_000) for number in range(20)}
    await asyncio.gather(*(sandbox.write(name, data) for name, data in contents.items()))
    read = await asyncio.gather(*(sandbox.read(name) for name in contents))
    must(list(read) == list(contents.values()), "files that were written at once are not what was written")


@GROUP.on_sandbox
async def links_are_followed_inside(sandbox: Sandbox) -> None:
    """A symbolic link in the workspace leads to its target in the sandbox."""
    await run(sandbox, 'mkdir d; echo target > d/file; ln -s d/file link; ln -s "$PWD/d" way; ln -s nowhere broken')
    same("the file by a link", await sandbox.read("link"), b"target\n")
    same("the file by a linked directory", await sandbox.read("way/file"), b"target\n")
    await _raises(FileNotFoundError, sandbox, "broken")


@GROUP.on_backend(claims="isolates_files")
async def links_do_not_lead_out(trial: Trial) -> None:
    """A symbolic link to a file of the host leads nowhere, neither for read nor for download."""
    sandbox = await trial.start()
    with canaries() as (paths, secret), _directory() as place:
        for number, path in enumerate(paths):
            await run(sandbox, f'ln -s "$TARGET" link{number}', env={"TARGET": str(path)})
            with suppress(OSError):
                must(secret not in await sandbox.read(f"link{number}"), f"{path} of the host was read")
            with suppress(OSError):
                await sandbox.download(f"link{number}", place / "file")
                must(secret not in _content(place / "file"), f"{path} of the host was downloaded")


async def _raises(kind: type[OSError], sandbox: Sandbox, path: str) -> None:
    try:
        data = await sandbox.read(path)
    except kind:
        return
    except OSError as error:
        raise BrokenPromiseError(f"reading {path!r} raised {type(error).__name__}, not {kind.__name__}") from error
    raise BrokenPromiseError(f"reading {path!r} gave {len(data)} bytes")


async def _cannot_write(sandbox: Sandbox, path: str) -> None:
    try:
        await sandbox.write(path, b"x")
    except OSError:
        return
    raise BrokenPromiseError(f"writing {path!r} succeeded")


async def _pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(0.01)
        yield piece


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def _filled(path: Path, size: int) -> bytes:
    data = os.urandom(size)
    path.write_bytes(data)
    return data


def _content(path: Path) -> bytes:
    return path.read_bytes()


def _entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())

"""read, write, upload and download: exact bytes, any name and size, errors like those of local files."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hermes_rl.sandbox.conformance.check import (
    CheckContext,
    CheckFailedError,
    CheckGroup,
    NotClaimedError,
    require,
    require_equal,
    require_output,
    run,
    slow_chunks,
)
from hermes_rl.sandbox.conformance.isolation import canaries
from hermes_rl.sandbox.protocol import Sandbox

GROUP = CheckGroup("files")

_LARGE = 20_000_000
_NAMES = ("two words", "two\nlines", "-n", "--help", "ünïcödé 漢字 🙂", 'it\'s "quoted"', "$HOME", "*", "a\\b", " ")


@GROUP.on_sandbox
async def files_are_exact(sandbox: Sandbox) -> None:
    """A written file reads back exactly: all byte values, no added newline."""
    data = bytes(range(256)) * 300
    await sandbox.write("file", data)
    require_equal("the file", await sandbox.read("file"), data)


@GROUP.on_sandbox
async def empty_file_round_trips(sandbox: Sandbox) -> None:
    """An empty file can be written and read."""
    await sandbox.write("file", b"")
    require_equal("the file", await sandbox.read("file"), b"")
    await require_output(sandbox, "stat -c %s file", b"0\n")


@GROUP.on_sandbox
async def overwriting_replaces_content(sandbox: Sandbox) -> None:
    """Writing a file again replaces its whole content."""
    await sandbox.write("file", b"a long first text")
    await sandbox.write("file", b"short")
    require_equal("the file", await sandbox.read("file"), b"short")


@GROUP.on_sandbox
async def commands_and_files_share_state(sandbox: Sandbox) -> None:
    """Commands see and change written files, and files that commands write can be read."""
    await sandbox.write("file", b"one\n")
    await require_output(sandbox, "echo two >> file && cat file", b"one\ntwo\n")
    require_equal("the file", await sandbox.read("file"), b"one\ntwo\n")


@GROUP.on_sandbox
async def paths_are_relative_to_workspace(sandbox: Sandbox) -> None:
    """A relative path is relative to the workspace; an absolute path is used as it is."""
    await sandbox.write("a/b", b"here")
    require_equal("the file by its absolute path", await sandbox.read(f"{sandbox.workspace}/a/b"), b"here")
    await sandbox.write(f"{sandbox.scratch}/c", b"there")
    await require_output(sandbox, "cat c", b"there", cwd=sandbox.scratch)


@GROUP.on_sandbox
async def parent_directories_are_created(sandbox: Sandbox) -> None:
    """Writing creates the parent directories of a file."""
    await sandbox.write("a/b b/c/d/file", b"deep")
    await require_output(sandbox, "cat 'a/b b/c/d/file'", b"deep")


@GROUP.on_sandbox
async def unusual_names_work(sandbox: Sandbox) -> None:
    """File names with spaces, newlines, quotes, stars, UTF-8 and a leading dash work."""
    for number, name in enumerate(_NAMES):
        await sandbox.write(name, b"%d" % number)
    for number, name in enumerate(_NAMES):
        require_equal(f"the file named {name!r}", await sandbox.read(name), b"%d" % number)
    await require_output(
        sandbox, "ls -A | tr '\\n' ' ' | wc -w > /dev/null; find . -type f | wc -l", b"%d\n" % (len(_NAMES) + 1)
    )


@GROUP.on_sandbox
async def missing_file_is_reported(sandbox: Sandbox) -> None:
    """Reading a missing file raises FileNotFoundError."""
    await _require_read_error(FileNotFoundError, sandbox, "no/such/file")


@GROUP.on_sandbox
async def directory_is_reported(sandbox: Sandbox) -> None:
    """Reading a directory raises IsADirectoryError, writing to one OSError."""
    await run(sandbox, "mkdir directory")
    await _require_read_error(IsADirectoryError, sandbox, "directory")
    await _require_write_error(sandbox, "directory")


@GROUP.on_sandbox
async def special_file_is_refused(sandbox: Sandbox) -> None:
    """Reading or writing a named pipe or a device raises OSError and does not hang."""
    await run(sandbox, "mkfifo pipe; ln -s /dev/zero endless")
    for name in ("pipe", "endless"):
        await _require_read_error(OSError, sandbox, name)
        await _require_write_error(sandbox, name)


@GROUP.on_sandbox
async def unreadable_file_is_reported(sandbox: Sandbox) -> None:
    """Reading a file without permission raises PermissionError, writing it OSError."""
    await run(sandbox, "echo secret > file; chmod 000 file")
    if (await run(sandbox, "cat file")).exit_code == 0:
        raise NotClaimedError("commands run as a user who may read everything")
    await _require_read_error(PermissionError, sandbox, "file")
    await _require_write_error(sandbox, "file")


@GROUP.on_sandbox
async def impossible_path_is_reported(sandbox: Sandbox) -> None:
    """Writing to an impossible path raises OSError."""
    await sandbox.write("file", b"x")
    await _require_write_error(sandbox, "file/below")
    await _require_write_error(sandbox, "/proc/no/such/place")


@GROUP.on_sandbox
async def size_limit_is_enforced(sandbox: Sandbox) -> None:
    """Reading a file larger than max_bytes raises OSError; one of exactly that size is read."""
    await sandbox.write("file", bytes(1000))
    require_equal("its length", len(await sandbox.read("file", max_bytes=1000)), 1000)
    try:
        data = await sandbox.read("file", max_bytes=999)
    except OSError:
        return
    raise CheckFailedError(f"{len(data)} bytes were read with max_bytes=999")


@GROUP.on_sandbox
async def write_accepts_stream(sandbox: Sandbox) -> None:
    """A file can be written from an asynchronous stream of chunks."""
    await sandbox.write("file", slow_chunks(b"one ", b"two ", b"three"))
    require_equal("the file", await sandbox.read("file"), b"one two three")


@GROUP.on_sandbox
async def large_files_are_exact(sandbox: Sandbox) -> None:
    """20 MB are uploaded and downloaded exactly, and their size is returned."""
    with _directory() as directory:
        data = _write_random(directory / "up", _LARGE)
        require_equal("the size uploaded", await sandbox.upload(directory / "up", "large"), _LARGE)
        await require_output(sandbox, "stat -c %s large", b"%d\n" % _LARGE)
        require_equal("the size downloaded", await sandbox.download("large", directory / "new" / "down"), _LARGE)
        require(_content(directory / "new" / "down") == data, "the file that came back differs")


@GROUP.on_sandbox
async def failed_download_leaves_no_file(sandbox: Sandbox) -> None:
    """Downloading a missing file or a directory raises and leaves no local file."""
    await run(sandbox, "mkdir directory")
    with _directory() as directory:
        for name, kind in (("missing", FileNotFoundError), ("directory", IsADirectoryError)):
            try:
                await sandbox.download(name, directory / "file")
            except kind:
                require(not _entries(directory), f"a failed download left {_entries(directory)}")
            else:
                raise CheckFailedError(f"a download of {name!r} succeeded")


@GROUP.on_sandbox
async def files_transfer_concurrently(sandbox: Sandbox) -> None:
    """Twenty files are written and read concurrently without mixing."""
    contents = {f"file{number}": os.urandom(100_000) for number in range(20)}
    await asyncio.gather(*(sandbox.write(name, data) for name, data in contents.items()))
    read = await asyncio.gather(*(sandbox.read(name) for name in contents))
    require(list(read) == list(contents.values()), "the content of files written concurrently is wrong")


@GROUP.on_sandbox
async def links_are_followed_inside(sandbox: Sandbox) -> None:
    """A symbolic link in the workspace resolves to its target in the sandbox."""
    await run(sandbox, 'mkdir d; echo target > d/file; ln -s d/file link; ln -s "$PWD/d" way; ln -s nowhere broken')
    require_equal("the file by a link", await sandbox.read("link"), b"target\n")
    require_equal("the file by a linked directory", await sandbox.read("way/file"), b"target\n")
    await _require_read_error(FileNotFoundError, sandbox, "broken")


@GROUP.on_backend(claims="isolates_files")
async def links_do_not_escape(context: CheckContext) -> None:
    """A symbolic link cannot reach a file of the host, neither by read nor by download."""
    sandbox = await context.start()
    with canaries() as (paths, secret), _directory() as directory:
        for number, path in enumerate(paths):
            await run(sandbox, f'ln -s "$TARGET" link{number}', env={"TARGET": str(path)})
            with suppress(OSError):
                require(secret not in await sandbox.read(f"link{number}"), f"{path} of the host was read")
            with suppress(OSError):
                await sandbox.download(f"link{number}", directory / "file")
                require(secret not in _content(directory / "file"), f"{path} of the host was downloaded")


async def _require_read_error(kind: type[OSError], sandbox: Sandbox, path: str) -> None:
    try:
        data = await sandbox.read(path)
    except kind:
        return
    except OSError as error:
        raise CheckFailedError(f"reading {path!r} raised {type(error).__name__}, not {kind.__name__}") from error
    raise CheckFailedError(f"reading {path!r} returned {len(data)} bytes")


async def _require_write_error(sandbox: Sandbox, path: str) -> None:
    try:
        await sandbox.write(path, b"x")
    except OSError:
        return
    raise CheckFailedError(f"writing {path!r} succeeded")


@contextmanager
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def _write_random(path: Path, size: int) -> bytes:
    data = os.urandom(size)
    path.write_bytes(data)
    return data


def _content(path: Path) -> bytes:
    return path.read_bytes()


def _entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())

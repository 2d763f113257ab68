"""Finished groups on local disk until the API has them.

A stored group survives any crash, and groups keep their order. One process owns the directory; partly written files are
ignored. Files are named by sequence number and draw, oldest first.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.file_lock import exclusive_lock
from hermes_rl.core.private_files import open_private, private_folder, write_private

LIMIT = 16 * 2**30
SUFFIX = ".group"
PARTIAL_SUFFIX = ".part"
REFUSED = "refused"
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
Result = TypeVar("Result")


class SpoolError(HermesRLError):
    """Writing a group failed. Nothing of it is left on disk, and it can be stored again."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """A group on disk."""

    number: int
    draw: int
    bytes: int

    @property
    def name(self) -> str:
        return f"{self.number:012}-{self.draw}{SUFFIX}"


class Spool:
    """The spooled groups of one environment, limited to `limit` bytes. Use inside `async with`."""

    def __init__(self, directory: Path, *, limit: int = LIMIT) -> None:
        self.directory = directory
        self.limit = limit
        self.bytes = 0
        self._groups: deque[Spooled] = deque()
        self._number = 0
        self._reserved = 0
        self._changed = asyncio.Condition()
        self._lock = ExitStack()
        self._thread = ThreadPoolExecutor(1, "hermes-rl-spool")
        self._writing: set[asyncio.Task[None]] = set()
        self._put_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        try:
            await self._run(self._open)
        except BaseException:
            self._lock.close()
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._writing:
            await asyncio.wait(self._writing)
        await self._run(self._lock.close)
        self._thread.shutdown()

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def full(self) -> bool:
        """Whether `put` would wait; a large group may wait even if not full."""
        return self._reserved >= self.limit

    @property
    def draws(self) -> frozenset[int]:
        return frozenset(group.draw for group in self._groups)

    async def put(self, draw: int, data: bytes) -> None:
        """Store a group; it is durable when this returns. Waits while the spool is full; SpoolError if the disk is."""
        # The lock keeps groups in call order even when some have to wait.
        async with self._put_lock, self._changed:
            await self._changed.wait_for(lambda: not self._reserved or self._reserved + len(data) <= self.limit)
            self._reserved += len(data)
            self._number += 1
            group = Spooled(self._number, draw, len(data))
        # The file is written even if the caller is cancelled, and must be counted then.
        await self._run_to_end(self._store(group, data))

    async def read(self, group: Spooled) -> bytes:
        return await self._run((self.directory / group.name).read_bytes)

    async def remove(self, group: Spooled) -> None:
        """Delete a group that the API has."""
        await self._run_to_end(self._forget(group, lambda: (self.directory / group.name).unlink(missing_ok=True)))

    async def refuse(self, group: Spooled, reason: str) -> None:
        """Set aside a group that the API will never accept, with a file that gives the reason."""

        def move() -> None:
            folder = self.directory / REFUSED
            private_folder(folder)
            write_private(folder / f"{group.name}.reason", f"{reason}\n".encode())
            (self.directory / group.name).rename(folder / group.name)

        await self._run_to_end(self._forget(group, move))

    async def oldest(self) -> Spooled:
        """The oldest group; waits until there is one."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._groups) > 0)
            return self._groups[0]

    async def emptied(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._groups)

    async def _store(self, group: Spooled, data: bytes) -> None:
        try:
            await self._run(lambda: self._write(group, data))
        except BaseException:
            await self._count(-group.bytes, stored=0)
            raise
        self._groups.append(group)
        await self._count(0, stored=group.bytes)

    async def _forget(self, group: Spooled, act: Callable[[], None]) -> None:
        await self._run(act)
        self._groups.remove(group)
        await self._count(-group.bytes, stored=-group.bytes)

    async def _count(self, reserved: int, *, stored: int) -> None:
        self._reserved += reserved
        self.bytes += stored
        async with self._changed:
            self._changed.notify_all()

    def _open(self) -> None:
        if not self.directory.is_dir():
            private_folder(self.directory)
            _sync(self.directory.parent)
        try:
            self._lock.enter_context(exclusive_lock(self.directory, ""))
        except ConfigError:
            raise ConfigError(
                f"another process owns the spool {self.directory}: this environment is already being served; "
                "stop that process, or use another name or shard"
            ) from None
        for partial in self.directory.glob(f"*{PARTIAL_SUFFIX}"):
            partial.unlink()
        found = sorted(map(_spooled, self.directory.glob(f"*{SUFFIX}")), key=lambda group: group.number)
        self._groups.extend(found)
        self.bytes = self._reserved = sum(group.bytes for group in found)
        refused = map(_spooled, (self.directory / REFUSED).glob(f"*{SUFFIX}"))
        self._number = max((group.number for group in (*found, *refused)), default=0)

    def _write(self, group: Spooled, data: bytes) -> None:
        path = self.directory / group.name
        partial = path.with_suffix(PARTIAL_SUFFIX)
        try:
            with open(partial, "wb", buffering=0, opener=open_private) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                os.fsync(file.fileno())
            partial.rename(path)
            _sync(self.directory)
        except OSError as error:
            for left in (partial, path):
                with suppress(OSError):
                    left.unlink(missing_ok=True)
            raise SpoolError(self._error_message(error)) from error

    def _error_message(self, error: OSError) -> str:
        held = (
            f"{self.directory} holds {len(self._groups)} groups ({self.bytes / 1e6:.1f} MB) that the API does not have"
        )
        if error.errno in DISK_FULL_ERRNOS:
            return f"disk full while storing a finished group ({error}); {held}: free disk space, or start the API"
        return f"storing a finished group failed ({error}); {held}: fix the disk, then start again"

    async def _run(self, act: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)

    async def _run_to_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run to the end even if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._writing.add(task)
        task.add_done_callback(self._done)
        await asyncio.shield(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            # Retrieved here, because a cancelled caller does not.
            task.exception()


def _spooled(path: Path) -> Spooled:
    number, _, draw = path.stem.partition("-")
    try:
        return Spooled(int(number), int(draw), path.stat().st_size)
    except ValueError:
        raise ConfigError(f"{path} is not a spooled group; move it out of the spool") from None


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

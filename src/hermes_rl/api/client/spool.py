"""Finished groups on local disk until the API has them.

Always true: a group that was put survives any crash, and the groups keep their order; one process owns the directory;
what a crash left half written is not seen. Files are named by their number and draw, oldest first.
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

from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.store.holding import only_writer

LIMIT = 16 * 2**30
SUFFIX = ".group"
PART = ".part"
REFUSED = "refused"
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
Result = TypeVar("Result")


class SpoolError(HermesRLError):
    """The disk did not take a group. Nothing of it stays, and it can be put again."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """A group that waits on disk."""

    number: int
    draw: int
    bytes: int

    @property
    def name(self) -> str:
        return f"{self.number:012}-{self.draw}{SUFFIX}"


class Spool:
    """The groups of one environment that wait on disk, `limit` bytes of them at most. Used inside `async with`."""

    def __init__(self, directory: Path, *, limit: int = LIMIT) -> None:
        self.directory = directory
        self.limit = limit
        self.bytes = 0
        self._groups: deque[Spooled] = deque()
        self._number = 0
        self._reserved = 0
        self._changed = asyncio.Condition()
        self._holding = ExitStack()
        self._thread = ThreadPoolExecutor(1, "hermes-rl-spool")
        self._writing: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        try:
            await self._run(self._open)
        except BaseException:
            self._holding.close()
            self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._writing:
            await asyncio.wait(self._writing)
        await self._run(self._holding.close)
        self._thread.shutdown()

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def full(self) -> bool:
        """Whether `put` would wait, or might for a large group."""
        return self._reserved >= self.limit

    @property
    def draws(self) -> frozenset[int]:
        return frozenset(group.draw for group in self._groups)

    async def put(self, draw: int, data: bytes) -> None:
        """Keep a group; it is durable when this returns. Waits while the spool is full; SpoolError if the disk is."""
        # In turn, so that the order of the calls is that of the groups also when some have to wait.
        async with self._turn, self._changed:
            await self._changed.wait_for(lambda: not self._reserved or self._reserved + len(data) <= self.limit)
            self._reserved += len(data)
            self._number += 1
            group = Spooled(self._number, draw, len(data))
        # The file is written also when the caller is cancelled, and must then be known.
        await self._whole(self._keep(group, data))

    async def read(self, group: Spooled) -> bytes:
        return await self._run((self.directory / group.name).read_bytes)

    async def remove(self, group: Spooled) -> None:
        """Let go of a group that the API has."""
        await self._whole(self._let_go(group, lambda: (self.directory / group.name).unlink(missing_ok=True)))

    async def refuse(self, group: Spooled, reason: str) -> None:
        """Set a group aside that the API will never take, with the reason beside it."""

        def move() -> None:
            place = self.directory / REFUSED
            place.mkdir(exist_ok=True)
            (place / f"{group.name}.reason").write_text(reason + "\n")
            (self.directory / group.name).rename(place / group.name)

        await self._whole(self._let_go(group, move))

    async def oldest(self) -> Spooled:
        """The group that waits longest; waits for one."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._groups) > 0)
            return self._groups[0]

    async def emptied(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._groups)

    async def _keep(self, group: Spooled, data: bytes) -> None:
        try:
            await self._run(lambda: self._write(group, data))
        except BaseException:
            await self._count(-group.bytes, kept=0)
            raise
        self._groups.append(group)
        await self._count(0, kept=group.bytes)

    async def _let_go(self, group: Spooled, act: Callable[[], None]) -> None:
        await self._run(act)
        self._groups.remove(group)
        await self._count(-group.bytes, kept=-group.bytes)

    async def _count(self, reserved: int, *, kept: int) -> None:
        self._reserved += reserved
        self.bytes += kept
        async with self._changed:
            self._changed.notify_all()

    def _open(self) -> None:
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True)
            _sync(self.directory.parent)
        try:
            self._holding.enter_context(only_writer(self.directory, ""))
        except ConfigError:
            raise ConfigError(
                f"another process owns the spool {self.directory}: this environment is being served already; "
                "stop that one, or give this one another name or shard"
            ) from None
        for part in self.directory.glob(f"*{PART}"):
            part.unlink()
        found = sorted(map(_spooled, self.directory.glob(f"*{SUFFIX}")), key=lambda group: group.number)
        self._groups.extend(found)
        self.bytes = self._reserved = sum(group.bytes for group in found)
        aside = map(_spooled, (self.directory / REFUSED).glob(f"*{SUFFIX}"))
        self._number = max((group.number for group in (*found, *aside)), default=0)

    def _write(self, group: Spooled, data: bytes) -> None:
        place = self.directory / group.name
        part = place.with_suffix(PART)
        try:
            with part.open("wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                os.fsync(file.fileno())
            part.rename(place)
            _sync(self.directory)
        except OSError as error:
            for left in (part, place):
                with suppress(OSError):
                    left.unlink(missing_ok=True)
            raise SpoolError(self._advice(error)) from error

    def _advice(self, error: OSError) -> str:
        held = (
            f"{self.directory} holds {len(self._groups)} groups ({self.bytes / 1e6:.1f} MB) that the API does not have"
        )
        if error.errno in NO_ROOM:
            return f"no room on disk for a finished group ({error}); {held}: make room there, or bring the API back"
        return f"a finished group could not be kept ({error}); {held}: mend the disk, then start again"

    async def _run(self, act: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)

    async def _whole(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it to the end, also when the one who waits for it is cancelled."""
        task = asyncio.create_task(work)
        self._writing.add(task)
        task.add_done_callback(self._done)
        await asyncio.shield(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            # Looked at here, for nobody else does when the caller was cancelled.
            task.exception()


def _spooled(path: Path) -> Spooled:
    number, _, draw = path.stem.partition("-")
    try:
        return Spooled(int(number), int(draw), path.stat().st_size)
    except ValueError:
        raise ConfigError(f"{path} is no group of a spool; move it elsewhere") from None


def _sync(directory: Path) -> None:
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(held)
    finally:
        os.close(held)

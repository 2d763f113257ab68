"""SQLite: one file, one thread that writes and one that reads, whatever the number of callers.

Always true: a write is answered after its commit is on disk; the writes that came while one was committed share the
next commit, and one that fails leaves the others alone. Small writes never wait for more than two commits of groups.
Other processes may have the same file open.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from hermes_rl.store.database.errors import StoreError, StoreFullError, StoreUnavailableError
from hermes_rl.store.database.sqlite_log import BUSY_SECONDS, Log, opened
from hermes_rl.store.database.steps import Dialect, Query, Row, Shared, Steps, T, W

MOST_TOGETHER = 128
# Groups of so many bytes are written and on disk in a few hundredths of a second.
BYTES_TOGETHER = 3 * 2**20
# A quota and a limit of the file's size are told as errors of the write itself.
FULL = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
}


def words_of(text: str) -> str:
    """An FTS5 query for all the words, none of which can be one of its operators."""
    return " ".join('"{}"'.format(word.replace('"', '""')) for word in text.split())


DIALECT = Dialect(
    name="sqlite",
    types={
        "key": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "int": "INTEGER",
        "float": "REAL",
        "blob": "BLOB",
    },
    now="(julianday('now') - 2440587.5) * 86400.0",
    # A write begins with BEGIN IMMEDIATE, which is the lock.
    lock=None,
    count_tables="SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = ?",
    text_key="rowid",
    text_matches="r.id IN (SELECT rowid FROM texts WHERE texts MATCH ?)",
    text_query=words_of,
)


@dataclass(eq=False)
class _Job:
    """Steps to run by themselves, or, when it says a size, for `one` among others."""

    steps: Callable[..., Steps[Any]]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    one: Any = None
    size: int | None = None
    result: Any = None

    def deliver(self) -> None:
        if self.answer.done():
            return
        if isinstance(self.result, BaseException):
            self.answer.set_exception(self.result)
        else:
            self.answer.set_result(self.result)


class SQLiteEngine:
    """Runs steps on one file, which is made if it is not there."""

    dialect = DIALECT

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = Log(path)
        self._writer = _Worker(path, "IMMEDIATE", self._log)
        self._reader = _Worker(path, "DEFERRED", self._log)

    async def write(self, steps: Callable[[], Steps[T]]) -> T:
        result: T = await self._writer.run(steps)
        return result

    async def share(self, steps: Shared[W, T], one: W, *, order: str, size: int) -> T:
        result: T = await self._writer.run(steps, one, size)
        return result

    async def read(self, steps: Callable[[], Steps[T]]) -> T:
        result: T = await self._reader.run(steps)
        return result

    async def close(self) -> None:
        """End the threads, once they have done what they were given."""
        await self._reader.close()
        await asyncio.get_running_loop().run_in_executor(None, self._log.close)
        await self._writer.close()


class _Worker:
    """One thread with a connection of its own, which it opens with the first thing it has to do."""

    def __init__(self, path: Path, mode: str, log: Log) -> None:
        self._path = path
        self._mode = mode
        self._log = log
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        self._thread = Thread(target=self._work, name=f"hermes-rl-store-{mode.lower()}", daemon=True)
        self._thread.start()

    async def run(self, steps: Callable[..., Steps[Any]], one: Any = None, size: int | None = None) -> Any:
        if self._closed:
            raise StoreError(f"the store {self._path} is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._jobs.put(_Job(steps, loop, answer, one, size))
        return await answer

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _work(self) -> None:
        going = True
        waiting: list[_Job] = []
        taken: list[_Job] = []
        while going or waiting:
            arrived = list(self._arrived(wait=not waiting))
            going = going and None not in arrived
            waiting += [job for job in arrived if job is not None]
            taken, waiting = _taken([job for job in waiting if not job.answer.cancelled()], taken)
            if taken:
                self._transact(taken)
                _deliver(taken)
                self._log.grew(sum(job.size or 0 for job in taken))
        if self._connection is not None:
            self._connection.close()

    def _arrived(self, *, wait: bool) -> Iterator[_Job | None]:
        with suppress(Empty):
            if wait:
                yield self._jobs.get()
            while True:
                yield self._jobs.get_nowait()

    def _transact(self, jobs: list[_Job]) -> None:
        try:
            connection = self._connected()
            connection.execute(f"BEGIN {self._mode}")
            try:
                _run_jobs(connection, jobs)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except BaseException as error:  # noqa: BLE001 - callers wait for an answer whatever happens
            told = _told(error, self._path) if isinstance(error, sqlite3.Error) else error
            for job in jobs:
                if not isinstance(job.result, BaseException):
                    job.result = told

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = opened(self._path)
        return self._connection


def _taken(waiting: list[_Job], before: list[_Job]) -> tuple[list[_Job], list[_Job]]:
    """What the next commit takes of what waits, and the rest. Small writes go first, and alone every other time."""
    taken: list[_Job] = []
    room = BYTES_TOGETHER
    ordered = sorted(waiting, key=lambda job: job.size is not None)
    small = sum(job.size is None for job in ordered)
    alone = small and any(job.size is not None for job in before)
    for job in ordered[: min(small, MOST_TOGETHER) if alone else MOST_TOGETHER]:
        if room <= 0:
            break
        taken.append(job)
        room -= job.size or 0
    return taken, ordered[len(taken) :]


def _deliver(jobs: list[_Job]) -> None:
    for loop in {job.loop for job in jobs}:
        here = [job for job in jobs if job.loop is loop]
        # A loop that was closed has nobody left to tell.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_deliver_here, here)


def _deliver_here(jobs: list[_Job]) -> None:
    for job in jobs:
        job.deliver()


def _run_jobs(connection: sqlite3.Connection, jobs: list[_Job]) -> None:
    sharing: dict[Callable[..., Steps[Any]], list[_Job]] = {}
    for job in jobs:
        if job.size is None:
            job.result = _run_apart(connection, job.steps)
        else:
            sharing.setdefault(job.steps, []).append(job)
    for steps, shared in sharing.items():
        for job, result in zip(shared, _run_shared(connection, steps, [job.one for job in shared]), strict=True):
            job.result = result


def _run_shared(connection: sqlite3.Connection, steps: Shared[W, T], many: list[W]) -> list[T | Exception]:
    results = _run_apart(connection, partial(steps, many))
    if isinstance(results, Exception):
        # One of them is to blame: each alone, then.
        return [results] if len(many) == 1 else [_run_shared(connection, steps, [one])[0] for one in many]
    return results


def _run_apart(connection: sqlite3.Connection, steps: Callable[[], Steps[T]]) -> T | Exception:
    """What the steps come to. Their failure undoes nothing but themselves, unless it ended the whole transaction."""
    result: T | Exception
    connection.execute("SAVEPOINT job")
    try:
        result = _run(connection, steps())
    except Exception as error:
        if not connection.in_transaction:
            # A full disk does this: what ran before in the transaction is undone too.
            raise
        connection.execute("ROLLBACK TO job")
        result = _told(error, None) if isinstance(error, sqlite3.Error) else error
    connection.execute("RELEASE job")
    return result


def _run(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    try:
        query = next(steps)
        while True:
            query = steps.send(_rows(connection, query))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


def _rows(connection: sqlite3.Connection, query: Query) -> list[Row]:
    if query.many:
        connection.executemany(query.sql, query.values)
        return []
    return connection.execute(query.sql, query.values).fetchall()


def _told(error: sqlite3.Error, path: Path | None) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0)
    where = f"the store {path}" if path else "the store"
    if code in FULL:
        return StoreFullError(f"{where} cannot write: {error}; make room on its disk, then try again")
    if code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreUnavailableError(f"{where} was held by another process for {BUSY_SECONDS:.0f} s: {error}")
    return StoreError(f"{where} failed: {type(error).__name__}: {error}")

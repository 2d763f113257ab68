"""SQLite engine: one file, one writer thread and one reader thread for any number of callers.

Always true: a write returns after its commit is on disk; writes that arrive during a commit share the next one, and a
failing write does not affect the others. Small writes wait for at most two commits of groups. Other processes may have
the same file open.
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

from hermes_rl.core.private_files import create_private, private_folder
from hermes_rl.store.database.errors import StoreError, StoreFullError, StoreUnavailableError
from hermes_rl.store.database.sqlite_log import BUSY_SECONDS, WalCheckpointer, open_connection
from hermes_rl.store.database.transactions import Query, Row, SharedTransaction, SqlDialect, T, Transaction, W

MAX_SHARED = 128
# Groups of this size are written and on disk in a few hundredths of a second.
MAX_SHARED_BYTES = 3 * 2**20
# Exceeding a quota or a file size limit is reported as a write error.
DISK_FULL_CODES = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
}


def fts_query(text: str) -> str:
    """An FTS5 query for all the words, quoted so that none acts as an operator."""
    return " ".join('"{}"'.format(word.replace('"', '""')) for word in text.split())


DIALECT = SqlDialect(
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
    text_query=fts_query,
)


@dataclass(eq=False)
class _SqliteJob:
    """A transaction to run alone, or, with a `size`, together with others for its `item`."""

    steps: Callable[..., Transaction[Any]]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    item: Any = None
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
    """Runs transactions on one file, created if missing."""

    dialect = DIALECT

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = WalCheckpointer(path)
        self._writer = _DatabaseThread(path, "IMMEDIATE", self._log)
        self._reader = _DatabaseThread(path, "DEFERRED", self._log)

    async def write(self, steps: Callable[[], Transaction[T]]) -> T:
        result: T = await self._writer.run(steps)
        return result

    async def write_shared(self, steps: SharedTransaction[W, T], item: W, *, sort_key: str, size: int) -> T:
        result: T = await self._writer.run(steps, item, size)
        return result

    async def read(self, steps: Callable[[], Transaction[T]]) -> T:
        result: T = await self._reader.run(steps)
        return result

    async def close(self) -> None:
        """Stop the threads after the pending work."""
        await self._reader.close()
        await asyncio.get_running_loop().run_in_executor(None, self._log.close)
        await self._writer.close()


class _DatabaseThread:
    """One thread with its own connection, opened on first use."""

    def __init__(self, path: Path, mode: str, log: WalCheckpointer) -> None:
        self._path = path
        self._mode = mode
        self._log = log
        self._jobs: SimpleQueue[_SqliteJob | None] = SimpleQueue()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        self._thread = Thread(target=self._work, name=f"hermes-rl-store-{mode.lower()}", daemon=True)
        self._thread.start()

    async def run(self, steps: Callable[..., Transaction[Any]], item: Any = None, size: int | None = None) -> Any:
        if self._closed:
            raise StoreError(f"the store {self._path} is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._jobs.put(_SqliteJob(steps, loop, answer, item, size))
        return await answer

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _work(self) -> None:
        running = True
        waiting: list[_SqliteJob] = []
        taken: list[_SqliteJob] = []
        while running or waiting:
            arrived = list(self._drain(wait=not waiting))
            running = running and None not in arrived
            waiting += [job for job in arrived if job is not None]
            taken, waiting = _next_commit([job for job in waiting if not job.answer.cancelled()], taken)
            if taken:
                self._transact(taken)
                _deliver(taken)
                self._log.add_bytes(sum(job.size or 0 for job in taken))
        if self._connection is not None:
            self._connection.close()

    def _drain(self, *, wait: bool) -> Iterator[_SqliteJob | None]:
        with suppress(Empty):
            if wait:
                yield self._jobs.get()
            while True:
                yield self._jobs.get_nowait()

    def _transact(self, jobs: list[_SqliteJob]) -> None:
        try:
            connection = self._connect()
            connection.execute(f"BEGIN {self._mode}")
            try:
                _run_jobs(connection, jobs)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except BaseException as error:  # noqa: BLE001 - callers wait for an answer whatever happens
            failure = _translate_error(error, self._path) if isinstance(error, sqlite3.Error) else error
            for job in jobs:
                if not isinstance(job.result, BaseException):
                    job.result = failure

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            private_folder(self._path.parent)
            # SQLite gives its log and index the mode of the database.
            create_private(self._path)
            self._connection = open_connection(self._path)
        return self._connection


def _next_commit(waiting: list[_SqliteJob], before: list[_SqliteJob]) -> tuple[list[_SqliteJob], list[_SqliteJob]]:
    """The jobs of the next commit, and the rest. Small writes go first, and alone every other time."""
    taken: list[_SqliteJob] = []
    room = MAX_SHARED_BYTES
    ordered = sorted(waiting, key=lambda job: job.size is not None)
    small = sum(job.size is None for job in ordered)
    alone = small and any(job.size is not None for job in before)
    for job in ordered[: min(small, MAX_SHARED) if alone else MAX_SHARED]:
        if room <= 0:
            break
        taken.append(job)
        room -= job.size or 0
    return taken, ordered[len(taken) :]


def _deliver(jobs: list[_SqliteJob]) -> None:
    for loop in {job.loop for job in jobs}:
        here = [job for job in jobs if job.loop is loop]
        # A closed loop has no callers left.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_deliver_all, here)


def _deliver_all(jobs: list[_SqliteJob]) -> None:
    for job in jobs:
        job.deliver()


def _run_jobs(connection: sqlite3.Connection, jobs: list[_SqliteJob]) -> None:
    sharing: dict[Callable[..., Transaction[Any]], list[_SqliteJob]] = {}
    for job in jobs:
        if job.size is None:
            job.result = _run_in_savepoint(connection, job.steps)
        else:
            sharing.setdefault(job.steps, []).append(job)
    for steps, shared in sharing.items():
        for job, result in zip(shared, _run_shared(connection, steps, [job.item for job in shared]), strict=True):
            job.result = result


def _run_shared(connection: sqlite3.Connection, steps: SharedTransaction[W, T], many: list[W]) -> list[T | Exception]:
    results = _run_in_savepoint(connection, partial(steps, many))
    if isinstance(results, Exception):
        # One of them failed: run each alone.
        return [results] if len(many) == 1 else [_run_shared(connection, steps, [item])[0] for item in many]
    return results


def _run_in_savepoint(connection: sqlite3.Connection, steps: Callable[[], Transaction[T]]) -> T | Exception:
    """The result of the steps, or their error. An error undoes only these steps, unless it ended the transaction."""
    result: T | Exception
    connection.execute("SAVEPOINT job")
    try:
        result = _run(connection, steps())
    except Exception as error:
        if not connection.in_transaction:
            # A full disk does this; earlier steps of the transaction are undone, too.
            raise
        connection.execute("ROLLBACK TO job")
        result = _translate_error(error, None) if isinstance(error, sqlite3.Error) else error
    connection.execute("RELEASE job")
    return result


def _run(connection: sqlite3.Connection, steps: Transaction[T]) -> T:
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


def _translate_error(error: sqlite3.Error, path: Path | None) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0)
    where = f"the store {path}" if path else "the store"
    if code in DISK_FULL_CODES:
        return StoreFullError(f"{where} cannot write: {error}; free space on its disk, then try again")
    if code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreUnavailableError(f"{where} was locked by another process for {BUSY_SECONDS:.0f} s: {error}")
    return StoreError(f"{where} failed: {type(error).__name__}: {error}")

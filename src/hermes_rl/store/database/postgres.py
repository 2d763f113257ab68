"""PostgreSQL: a few connections on the event loop, for any number of replicas over one database.

Always true: a write is answered after its commit; groups that wait for a connection share a transaction, and one that
fails leaves the others alone; a connection that broke is made anew. One transaction at a time decides about the queue,
by an advisory lock of the schema's name.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from hermes_rl.errors import ConfigError
from hermes_rl.store.database.errors import StoreError, StoreFullError, StoreUnavailableError
from hermes_rl.store.database.steps import Dialect, Query, Row, Shared, Steps, T, W

if TYPE_CHECKING:
    import psycopg

    Connection: TypeAlias = psycopg.AsyncConnection[Row]

ADDRESS = ("postgresql://", "postgres://")
WRITERS = 4
READERS = 2
MOST_TOGETHER = 16
BYTES_TOGETHER = 4 * 2**20
CONNECT_SECONDS = 10
STATEMENT_SECONDS = 30
TRANSACTION_SECONDS = 60.0
TRIES = 3
MARK = re.compile(r"\?")

DIALECT = Dialect(
    name="postgresql",
    types={
        "key": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "int": "BIGINT",
        "float": "DOUBLE PRECISION",
        "blob": "BYTEA",
    },
    now="EXTRACT(EPOCH FROM clock_timestamp())::FLOAT8",
    lock="SELECT pg_advisory_xact_lock(hashtext('hermes-rl'), hashtext(current_schema()))",
    count_tables="SELECT COUNT(to_regclass(?::TEXT))",
    text_key="rollout",
    text_matches="r.id IN (SELECT rollout FROM texts WHERE words @@ plainto_tsquery('simple', ?))",
    text_query=str,
)


@dataclass(eq=False)
class _Job:
    """Steps to run by themselves, or, when it says an order, for `one` among others."""

    steps: Callable[..., Steps[Any]]
    answer: asyncio.Future[Any]
    one: Any = None
    order: str | None = None
    size: int = 0


class PostgresEngine:
    """Runs steps on the database of a connection string; its `search_path` chooses among several stores in one."""

    dialect = DIALECT

    def __init__(self, address: str) -> None:
        self._address = address
        self._writes: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._reads: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._together: deque[_Job] = deque()
        driver()
        self._workers = [
            *(asyncio.create_task(self._work(self._writes)) for _ in range(WRITERS)),
            *(asyncio.create_task(self._work(self._reads)) for _ in range(READERS)),
        ]
        self._closed = False

    async def write(self, steps: Callable[[], Steps[T]]) -> T:
        result: T = await self._asked(self._writes, steps)
        return result

    async def share(self, steps: Shared[W, T], one: W, *, order: str, size: int) -> T:
        result: T = await self._asked(self._writes, steps, one, order, size)
        return result

    async def read(self, steps: Callable[[], Steps[T]]) -> T:
        result: T = await self._asked(self._reads, steps)
        return result

    async def close(self) -> None:
        """End the connections, once they have done what they were given."""
        if not self._closed:
            self._closed = True
            for _ in range(WRITERS):
                self._writes.put_nowait(None)
            for _ in range(READERS):
                self._reads.put_nowait(None)
        await asyncio.gather(*self._workers)

    async def _asked(
        self,
        jobs: asyncio.Queue[_Job | None],
        steps: Callable[..., Steps[Any]],
        one: Any = None,
        order: str | None = None,
        size: int = 0,
    ) -> Any:
        if self._closed:
            raise StoreError("the store is closed")
        job = _Job(steps, asyncio.get_running_loop().create_future(), one, order, size)
        if order is not None:
            self._together.append(job)
        jobs.put_nowait(job)
        return await job.answer

    async def _work(self, jobs: asyncio.Queue[_Job | None]) -> None:
        session = _Session(self._address)
        try:
            while (job := await jobs.get()) is not None:
                if wanted := self._taken(job):
                    await session.run(wanted)
        finally:
            await session.close()

    def _taken(self, job: _Job) -> list[_Job]:
        """The job, or, if it may share a transaction, some of those that wait; none when another worker took it."""
        if job.order is None:
            return [] if job.answer.done() else [job]
        taken: list[_Job] = []
        room = BYTES_TOGETHER
        while self._together and len(taken) < MOST_TOGETHER and room > 0:
            one = self._together[0]
            if taken and one.steps is not taken[0].steps:
                break
            self._together.popleft()
            if not one.answer.done():
                taken.append(one)
                room -= one.size
        # Two transactions that add the same ids in different orders would wait for each other.
        return sorted(taken, key=lambda one: one.order or "")


class _Session:
    """One connection, made anew when it broke."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: Connection | None = None

    async def run(self, jobs: list[_Job]) -> None:
        results: list[Any]
        try:
            results = await self._tried(jobs)
        except (StoreFullError, StoreUnavailableError) as error:
            results = [error] * len(jobs)
        except Exception as error:  # noqa: BLE001 - callers wait for an answer whatever happens
            if len(jobs) > 1:
                # One of them is to blame: each alone, then.
                for job in jobs:
                    await self.run([job])
                return
            results = [error]
        for job, result in zip(jobs, results, strict=True):
            if job.answer.done():
                continue
            if isinstance(result, Exception):
                job.answer.set_exception(result)
            else:
                job.answer.set_result(result)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                await connection.close()

    async def _tried(self, jobs: list[_Job]) -> list[Any]:
        psycopg = driver()
        for left in reversed(range(TRIES)):
            begun = False
            try:
                async with asyncio.timeout(TRANSACTION_SECONDS):
                    connection = await self._connected()
                    await connection.execute("BEGIN")
                    begun = True
                    return await _transact(connection, jobs)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                await self._clear()
                if not left:
                    raise StoreUnavailableError(f"PostgreSQL kept refusing: {error}") from error
            except psycopg.OperationalError as error:
                await self._clear()
                # Nothing was asked yet of a connection that broke while it was idle.
                if begun or not left or _is_full(error):
                    raise _told(error) from error
            except psycopg.Error as error:
                await self._clear()
                raise _told(error) from error
            except TimeoutError as error:
                await self.close()
                raise StoreUnavailableError(f"PostgreSQL did not answer in {TRANSACTION_SECONDS:.0f} s") from error
            except Exception:
                await self._clear()
                raise
            except BaseException:
                await self.close()
                raise
        raise AssertionError("the last try returns or raises")

    async def _connected(self) -> "Connection":
        if self._connection is None:
            psycopg = driver()
            connection = await psycopg.AsyncConnection.connect(
                self._address, autocommit=True, connect_timeout=CONNECT_SECONDS
            )
            try:
                await connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
                # Another setting of the server would answer before the group is on disk.
                await connection.execute("SET synchronous_commit = on")
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _clear(self) -> None:
        """Leave no transaction open; a connection that cannot say so is let go."""
        try:
            if self._connection is not None:
                await self._connection.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - whatever it is, a new connection has it not
            await self.close()


async def _transact(connection: "Connection", jobs: list[_Job]) -> list[Any]:
    [first, *_] = jobs
    if first.order is None:
        results = [await _run(connection, first.steps())]
        await connection.execute("COMMIT")
        return results
    # What has no rows to give is sent on without waiting for it.
    async with connection.pipeline() as pipeline:
        results = await _run(connection, first.steps([job.one for job in jobs]), pipeline)
        await connection.execute("COMMIT")
    return results


async def _run(connection: "Connection", steps: Steps[T], pipeline: "psycopg.AsyncPipeline | None" = None) -> T:
    try:
        query = next(steps)
        while True:
            query = steps.send(await _rows(connection, query, pipeline))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


async def _rows(connection: "Connection", query: Query, pipeline: "psycopg.AsyncPipeline | None") -> list[Row]:
    sql: Any = numbered(query.sql)
    # Bytes as text would be twice as many.
    async with driver().AsyncRawCursor(connection) as cursor:
        if query.many:
            await cursor.executemany(sql, query.values)
        else:
            await cursor.execute(sql, query.values or None, binary=True)
        if query.silent:
            return []
        if pipeline is not None:
            await pipeline.sync()
        rows: list[Row] = await cursor.fetchall() if cursor.description else []
        return rows


@lru_cache(256)
def numbered(sql: str) -> str:
    """The statement as PostgreSQL itself takes it; psycopg looks for the marks of a long one each time anew."""
    numbers = count(1)
    return MARK.sub(lambda _: f"${next(numbers)}", sql)


def _told(error: Exception) -> StoreError:
    if _is_full(error):
        return StoreFullError(f"PostgreSQL cannot write: {error}; make room on its disk, then try again")
    if isinstance(error, driver().OperationalError):
        return StoreUnavailableError(f"PostgreSQL cannot be reached or gave up: {error}")
    return StoreError(f"PostgreSQL failed: {type(error).__name__}: {error}")


def _is_full(error: Exception) -> bool:
    return isinstance(error, driver().errors.DiskFull)


def driver() -> Any:
    """psycopg; ConfigError with the line that installs it."""
    try:
        import psycopg
    except ImportError:
        raise ConfigError("PostgreSQL needs psycopg: pip install 'hermes-rl[postgres]'") from None
    return psycopg

"""PostgreSQL engine: a few connections on the event loop; any number of replicas can use one database.

Always true: a write returns after its commit; groups that wait for a connection share a transaction, and a failing one
does not affect the others; broken connections are replaced. Queue decisions are serialised by an advisory lock on the
schema's name.
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

from hermes_rl.core.errors import ConfigError
from hermes_rl.store.database.errors import StoreError, StoreFullError, StoreUnavailableError
from hermes_rl.store.database.transactions import Query, Row, SharedTransaction, SqlDialect, T, Transaction, W

if TYPE_CHECKING:
    import psycopg

    Connection: TypeAlias = psycopg.AsyncConnection[Row]

URL_PREFIXES = ("postgresql://", "postgres://")
WRITERS = 4
READERS = 2
MAX_SHARED = 16
MAX_SHARED_BYTES = 4 * 2**20
CONNECT_SECONDS = 10
STATEMENT_SECONDS = 30
TRANSACTION_SECONDS = 60.0
ATTEMPTS = 3
PLACEHOLDER = re.compile(r"\?")

DIALECT = SqlDialect(
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
class _PostgresJob:
    """A transaction to run alone, or, with a `sort_key`, together with others for its `item`."""

    steps: Callable[..., Transaction[Any]]
    answer: asyncio.Future[Any]
    item: Any = None
    sort_key: str | None = None
    size: int = 0


class PostgresEngine:
    """Runs transactions on one database; the `search_path` in its URL selects one of several stores."""

    dialect = DIALECT

    def __init__(self, address: str) -> None:
        self._address = address
        self._writes: asyncio.Queue[_PostgresJob | None] = asyncio.Queue()
        self._reads: asyncio.Queue[_PostgresJob | None] = asyncio.Queue()
        self._shared: deque[_PostgresJob] = deque()
        load_psycopg()
        self._workers = [
            *(asyncio.create_task(self._work(self._writes)) for _ in range(WRITERS)),
            *(asyncio.create_task(self._work(self._reads)) for _ in range(READERS)),
        ]
        self._closed = False

    async def write(self, steps: Callable[[], Transaction[T]]) -> T:
        result: T = await self._submit(self._writes, steps)
        return result

    async def write_shared(self, steps: SharedTransaction[W, T], item: W, *, sort_key: str, size: int) -> T:
        result: T = await self._submit(self._writes, steps, item, sort_key, size)
        return result

    async def read(self, steps: Callable[[], Transaction[T]]) -> T:
        result: T = await self._submit(self._reads, steps)
        return result

    async def close(self) -> None:
        """Close the connections after the pending work."""
        if not self._closed:
            self._closed = True
            for _ in range(WRITERS):
                self._writes.put_nowait(None)
            for _ in range(READERS):
                self._reads.put_nowait(None)
        await asyncio.gather(*self._workers)

    async def _submit(
        self,
        jobs: asyncio.Queue[_PostgresJob | None],
        steps: Callable[..., Transaction[Any]],
        item: Any = None,
        sort_key: str | None = None,
        size: int = 0,
    ) -> Any:
        if self._closed:
            raise StoreError("the store is closed")
        job = _PostgresJob(steps, asyncio.get_running_loop().create_future(), item, sort_key, size)
        if sort_key is not None:
            self._shared.append(job)
        jobs.put_nowait(job)
        return await job.answer

    async def _work(self, jobs: asyncio.Queue[_PostgresJob | None]) -> None:
        session = _Session(self._address)
        try:
            while (job := await jobs.get()) is not None:
                if taken := self._take(job):
                    await session.run(taken)
        finally:
            await session.close()

    def _take(self, job: _PostgresJob) -> list[_PostgresJob]:
        """The job, or the waiting jobs that share its transaction; none when another worker took it."""
        if job.sort_key is None:
            return [] if job.answer.done() else [job]
        taken: list[_PostgresJob] = []
        room = MAX_SHARED_BYTES
        while self._shared and len(taken) < MAX_SHARED and room > 0:
            waiting = self._shared[0]
            if taken and waiting.steps is not taken[0].steps:
                break
            self._shared.popleft()
            if not waiting.answer.done():
                taken.append(waiting)
                room -= waiting.size
        # Two transactions that add the same ids in different orders would deadlock.
        return sorted(taken, key=lambda job: job.sort_key or "")


class _Session:
    """One connection, reopened when it breaks."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: Connection | None = None

    async def run(self, jobs: list[_PostgresJob]) -> None:
        results: list[Any]
        try:
            results = await self._retry(jobs)
        except (StoreFullError, StoreUnavailableError) as error:
            results = [error] * len(jobs)
        except Exception as error:  # noqa: BLE001 - callers wait for an answer whatever happens
            if len(jobs) > 1:
                # One of them failed: run each alone.
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

    async def _retry(self, jobs: list[_PostgresJob]) -> list[Any]:
        psycopg = load_psycopg()
        for remaining in reversed(range(ATTEMPTS)):
            begun = False
            try:
                async with asyncio.timeout(TRANSACTION_SECONDS):
                    connection = await self._connect()
                    await connection.execute("BEGIN")
                    begun = True
                    return await _transact(connection, jobs)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                await self._rollback()
                if not remaining:
                    raise StoreUnavailableError(f"PostgreSQL rejected {ATTEMPTS} attempts: {error}") from error
            except psycopg.OperationalError as error:
                await self._rollback()
                # A connection that broke while idle had not executed anything yet.
                if begun or not remaining or _is_full(error):
                    raise _translate_error(error) from error
            except psycopg.Error as error:
                await self._rollback()
                raise _translate_error(error) from error
            except TimeoutError as error:
                await self.close()
                raise StoreUnavailableError(f"PostgreSQL did not answer in {TRANSACTION_SECONDS:.0f} s") from error
            except Exception:
                await self._rollback()
                raise
            except BaseException:
                await self.close()
                raise
        raise AssertionError("the last attempt returns or raises")

    async def _connect(self) -> "Connection":
        if self._connection is None:
            psycopg = load_psycopg()
            connection = await psycopg.AsyncConnection.connect(
                self._address, autocommit=True, connect_timeout=CONNECT_SECONDS
            )
            try:
                await connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
                # With another setting the server would answer before the group is on disk.
                await connection.execute("SET synchronous_commit = on")
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _rollback(self) -> None:
        """Leave no transaction open; closes the connection if that fails."""
        try:
            if self._connection is not None:
                await self._connection.execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - a new connection will not have the problem
            await self.close()


async def _transact(connection: "Connection", jobs: list[_PostgresJob]) -> list[Any]:
    [first, *_] = jobs
    if first.sort_key is None:
        results = [await _run(connection, first.steps())]
        await connection.execute("COMMIT")
        return results
    # Statements without result rows are sent without waiting.
    async with connection.pipeline() as pipeline:
        results = await _run(connection, first.steps([job.item for job in jobs]), pipeline)
        await connection.execute("COMMIT")
    return results


async def _run(connection: "Connection", steps: Transaction[T], pipeline: "psycopg.AsyncPipeline | None" = None) -> T:
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
    sql: Any = number_placeholders(query.sql)
    # Binary mode: bytes in text mode take twice the space.
    async with load_psycopg().AsyncRawCursor(connection) as cursor:
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
def number_placeholders(sql: str) -> str:
    """The SQL with `?` replaced by `$1`, `$2`, ...; cached, since psycopg would parse a long statement every time."""
    numbers = count(1)
    return PLACEHOLDER.sub(lambda _: f"${next(numbers)}", sql)


def _translate_error(error: Exception) -> StoreError:
    if _is_full(error):
        return StoreFullError(f"PostgreSQL cannot write: {error}; free space on its disk, then try again")
    if isinstance(error, load_psycopg().OperationalError):
        return StoreUnavailableError(f"PostgreSQL is unreachable or aborted: {error}")
    return StoreError(f"PostgreSQL failed: {type(error).__name__}: {error}")


def _is_full(error: Exception) -> bool:
    return isinstance(error, load_psycopg().errors.DiskFull)


def load_psycopg() -> Any:
    """The psycopg module; ConfigError with the install command when it is missing."""
    try:
        import psycopg
    except ImportError:
        raise ConfigError("PostgreSQL needs psycopg: pip install 'hermes-rl[postgres]'") from None
    return psycopg

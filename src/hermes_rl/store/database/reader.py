"""Read-only access to a store, on the caller's thread, in short reads that block no writer.

Always true: this writes nothing and migrates nothing, so a store in use by an older or busy process stays unchanged;
broken connections are replaced.
"""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import quote

from hermes_rl.core.errors import ConfigError
from hermes_rl.store.database.errors import NewerSchemaError, StoreError, StoreUnavailableError
from hermes_rl.store.database.postgres import (
    CONNECT_SECONDS,
    STATEMENT_SECONDS,
    URL_PREFIXES,
    load_psycopg,
    number_placeholders,
)
from hermes_rl.store.database.schema import MIGRATIONS
from hermes_rl.store.database.sqlite import DIALECT as SQLITE
from hermes_rl.store.database.transactions import Row

CACHE_KB = 4_096
BUSY_SECONDS = 5.0
RETRY_SECONDS = 5.0


class GroupLocation(NamedTuple):
    """A group's position, arrival time and size in bytes; 0 when its bytes were deleted."""

    place: int
    arrived_at: float
    bytes: int


class GroupUse(NamedTuple):
    """What became of a group: queued, leased, trained or dropped; why it was dropped, and in which batch it was."""

    state: str
    cause: str
    batch: int | None


class StoreReader:
    """Reads the store at a path or at `postgresql://…`, from any thread, one read at a time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._postgres = address.startswith(URL_PREFIXES)
        self._connection: Any = None
        self._lock = Lock()
        self._failed: tuple[float, Exception] | None = None

    def close(self) -> None:
        with self._lock:
            self._drop()

    def groups_after(self, after: int, limit: int) -> list[GroupLocation]:
        """The groups after a position, in order."""
        rows = self._query(
            "SELECT place, arrived_at, CASE WHEN kept = 1 THEN bytes ELSE 0 END FROM groups WHERE place > ? "
            "ORDER BY place LIMIT ?",
            after,
            limit,
        )
        return [GroupLocation(place, arrived_at, int(size)) for place, arrived_at, size in rows]

    def data(self, place: int) -> bytes | None:
        """The bytes of a group; None when it does not exist or they were deleted."""
        rows = self._query("SELECT data FROM blobs WHERE place = ?", place)
        return bytes(rows[0][0]) if rows else None

    def newest(self) -> int:
        """The position of the newest group; 0 while there is none."""
        return int(self._query("SELECT COALESCE(MAX(place), 0) FROM groups")[0][0])

    def waiting(self) -> int:
        """How many rollouts are in the queue, leased or not."""
        return int(self._query("SELECT COALESCE(SUM(size), 0) FROM queue")[0][0])

    def uses(self, places: Sequence[int]) -> dict[int, GroupUse]:
        """What became of these groups."""
        marks = ", ".join("?" * len(places))
        ended = "SELECT place, outcome, cause, batch FROM outcomes WHERE place IN ({})"
        queued = "SELECT place, CASE WHEN batch IS NULL THEN 'queued' ELSE 'leased' END, '', batch FROM queue "
        rows = [
            row
            for sql in (ended, queued + "WHERE place IN ({})")
            for row in (self._query(sql.format(marks), *places) if places else ())
        ]
        return {int(place): GroupUse(str(state), str(cause), batch) for place, state, cause, batch in rows}

    def batch_places(self, batches: Sequence[int], limit: int) -> list[int]:
        """The groups of these batches, in order."""
        marks = ", ".join("?" * len(batches))
        sql = f"SELECT place FROM batch_groups WHERE batch IN ({marks}) ORDER BY place LIMIT ?"  # noqa: S608
        return [int(place) for (place,) in self._query(sql, *batches, limit)] if batches else []

    def environments(self) -> list[str]:
        return [str(name) for (name,) in self._query("SELECT DISTINCT name FROM environments ORDER BY name LIMIT 20")]

    def _query(self, sql: str, *values: Any) -> Sequence[Row]:
        with self._lock:
            try:
                return self._rows(sql, values)
            except sqlite3.Error as error:
                self._drop()
                if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                    raise ConfigError(f"{self._address} is not a trajectory database: {error}") from None
                raise StoreError(f"the store {self._address} cannot be read: {error}") from error
            except _connection_errors(self._postgres) as error:
                self._drop()
                raise StoreUnavailableError(f"PostgreSQL cannot be read: {error}") from error

    def _rows(self, sql: str, values: Sequence[Any]) -> Sequence[Row]:
        for remaining in (1, 0):
            fresh = self._connection is None
            if fresh:
                self._connection = self._connect()
            try:
                return _fetch(self._connection, sql, values, postgres=self._postgres)
            except _connection_errors(self._postgres):
                # The server may have closed an idle connection.
                self._drop()
                if fresh or not remaining:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _connect(self) -> Any:
        if self._failed and time.monotonic() - self._failed[0] < RETRY_SECONDS:
            raise self._failed[1]
        try:
            connection = _open_postgres(self._address) if self._postgres else _open_sqlite(Path(self._address))
        except Exception as error:
            # Fail fast for a while: a connection timeout can take long.
            self._failed = (time.monotonic(), error)
            raise
        try:
            _check_schema(connection, postgres=self._postgres)
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _open_sqlite(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise ConfigError(f"there is no store at {path}")
    name = f"file:{quote(str(path.resolve()))}?mode=ro"
    connection = sqlite3.connect(name, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchall()
    except sqlite3.OperationalError:
        # A read-only folder cannot hold the shared-memory file; but then there are no writers either.
        connection.close()
        connection = sqlite3.connect(f"{name}&immutable=1", uri=True, isolation_level=None, check_same_thread=False)
    except sqlite3.Error:
        connection.close()
        raise
    connection.execute(f"PRAGMA cache_size = -{CACHE_KB}").fetchall()
    return connection


def _open_postgres(address: str) -> Any:
    psycopg = load_psycopg()
    connection = psycopg.connect(address, autocommit=True, connect_timeout=CONNECT_SECONDS)
    connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
    connection.execute("SET default_transaction_read_only = on")
    return connection


def _fetch(connection: Any, sql: str, values: Sequence[Any], *, postgres: bool) -> Sequence[Row]:
    if not postgres:
        rows: Sequence[Row] = connection.execute(sql, values).fetchall()
        return rows
    with load_psycopg().RawCursor(connection) as cursor:
        cursor.execute(number_placeholders(sql), values or None, binary=True)
        found: Sequence[Row] = cursor.fetchall()
        return found


def _check_schema(connection: Any, *, postgres: bool) -> None:
    count = "SELECT COUNT(to_regclass(?::TEXT))" if postgres else SQLITE.count_tables
    [(there,)] = _fetch(connection, count, ("schema_versions",), postgres=postgres)
    newest = "SELECT MAX(version) FROM schema_versions"
    version = _fetch(connection, newest, (), postgres=postgres) if there else ()
    if not version or not version[0][0]:
        raise ConfigError("this is not a trajectory database; pass one that `hermes-rl api` created")
    if version[0][0] > len(MIGRATIONS):
        raise NewerSchemaError(
            f"the database has schema version {version[0][0]}; this hermes-rl knows {len(MIGRATIONS)}: "
            "upgrade hermes-rl (`pip install -U hermes-rl`)"
        )


def _connection_errors(postgres: bool) -> Any:
    return load_psycopg().OperationalError if postgres else ()

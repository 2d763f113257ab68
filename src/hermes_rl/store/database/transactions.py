"""Transactions as generators, which yield queries and are sent the rows.

Always true: a transaction owns no connection and never waits, so the same code runs in SQLite's thread and on the event
loop of PostgreSQL. In its SQL `?` is the placeholder of a value.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
W = TypeVar("W")
INSERT_ROWS = 64
Row: TypeAlias = tuple[Any, ...]


class Query(NamedTuple):
    """One statement with its values, or, when `many`, with a list of rows; a `silent` one returns no rows."""

    sql: str
    values: Sequence[Any] = ()
    many: bool = False
    silent: bool = False


Transaction: TypeAlias = Generator[Query, list[Row], T]
# Returns a result or an exception for each of several items.
SharedTransaction: TypeAlias = Callable[[Sequence[W]], Transaction[list[T | Exception]]]


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """What differs between the two databases. `types` fills in the column types of the schema."""

    name: str
    types: dict[str, str]
    now: str
    # Serialises transactions over all processes.
    lock: str | None
    # Counts the tables of a name on the search path.
    count_tables: str
    text_key: str
    text_matches: str
    text_query: Callable[[str], str]


class DatabaseEngine(Protocol):
    """Runs transactions. `write` returns after the commit is on disk."""

    @property
    def dialect(self) -> SqlDialect: ...

    async def write(self, steps: Callable[[], Transaction[T]]) -> T: ...

    async def write_shared(self, steps: SharedTransaction[W, T], item: W, *, sort_key: str, size: int) -> T:
        """Write an item of about `size` bytes, in one transaction with others that wait for the same steps."""

    async def read(self, steps: Callable[[], Transaction[T]]) -> T: ...

    async def close(self) -> None: ...


def execute(sql: str, *values: Any) -> Transaction[list[Row]]:
    return (yield Query(sql, values))


def fetch_one(sql: str, *values: Any) -> Transaction[Row | None]:
    rows = yield Query(sql, values)
    return rows[0] if rows else None


def execute_many(sql: str, values: Iterable[Sequence[Any]]) -> Transaction[None]:
    """Execute the statement once per row of values."""
    if rows := list(values):
        yield Query(sql, rows, many=True, silent=True)


def insert_rows(head: str, rows: Iterable[Sequence[Any]]) -> Transaction[None]:
    """Insert many rows with few statements: each costs a round trip, or a turn at the interpreter lock."""
    for chunk in batched(rows, INSERT_ROWS):
        values = ", ".join([f"({placeholders(len(chunk[0]))})"] * len(chunk))
        yield Query(f"{head} VALUES {values}", [value for row in chunk for value in row], silent=True)


def batched(rows: Iterable[Sequence[Any]], count: int) -> Iterator[list[Sequence[Any]]]:
    rest = iter(rows)
    while chunk := list(islice(rest, count)):
        yield chunk


def take_lock(dialect: SqlDialect) -> Transaction[None]:
    if dialect.lock:
        yield Query(dialect.lock)


def placeholders(count: int) -> str:
    """`?, ?, …` for that many values."""
    return ", ".join("?" * count)


def database_time(dialect: SqlDialect) -> Transaction[float]:
    """Seconds since 1970 by the database's clock, which all replicas share."""
    row = yield from fetch_one(f"SELECT {dialect.now}")
    assert row is not None  # noqa: S101 - a SELECT without a table has one row
    return float(row[0])

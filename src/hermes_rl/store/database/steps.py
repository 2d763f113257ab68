"""What the store asks of a database, said without asking: generators that yield queries and are sent the rows.

Always true: steps own no connection and never wait, so the same ones run in SQLite's thread and on PostgreSQL's event
loop, each run in one transaction. In their SQL `?` stands for a value.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
W = TypeVar("W")
ROWS = 64
Row: TypeAlias = tuple[Any, ...]


class Query(NamedTuple):
    """One statement with its values, or, when `many`, with a list of them; a `silent` one has no rows to give."""

    sql: str
    values: Sequence[Any] = ()
    many: bool = False
    silent: bool = False


Steps: TypeAlias = Generator[Query, list[Row], T]
# For each of several what became of it, or why nothing did.
Shared: TypeAlias = Callable[[Sequence[W]], Steps[list[T | Exception]]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where the two databases differ. The schema's types are filled in by name."""

    name: str
    types: dict[str, str]
    now: str
    # Lets one transaction at a time through, over all processes, until it ends.
    lock: str | None
    # How many tables there are of a name, where an unqualified one is looked for.
    count_tables: str
    text_key: str
    text_matches: str
    text_query: Callable[[str], str]


class Engine(Protocol):
    """Runs steps in transactions. `write` returns after the commit is on disk."""

    @property
    def dialect(self) -> Dialect: ...

    async def write(self, steps: Callable[[], Steps[T]]) -> T: ...

    async def share(self, steps: "Shared[W, T]", one: W, *, order: str, size: int) -> T:
        """Run them for `one` and for all of `size` bytes or so that waits for the same steps, as few transactions."""

    async def read(self, steps: Callable[[], Steps[T]]) -> T: ...

    async def close(self) -> None: ...


def ask(sql: str, *values: Any) -> Steps[list[Row]]:
    return (yield Query(sql, values))


def one(sql: str, *values: Any) -> Steps[Row | None]:
    rows = yield Query(sql, values)
    return rows[0] if rows else None


def each(sql: str, values: Iterable[Sequence[Any]]) -> Steps[None]:
    """The statement once for each row of values."""
    if rows := list(values):
        yield Query(sql, rows, many=True, silent=True)


def insert(head: str, rows: Iterable[Sequence[Any]]) -> Steps[None]:
    """`INSERT INTO … (…)` of many rows by few statements: each is a round trip, or a turn at the interpreter's lock."""
    for some in batched(rows, ROWS):
        values = ", ".join([f"({marks(len(some[0]))})"] * len(some))
        yield Query(f"{head} VALUES {values}", [value for row in some for value in row], silent=True)


def batched(rows: Iterable[Sequence[Any]], count: int) -> Iterator[list[Sequence[Any]]]:
    rest = iter(rows)
    while some := list(islice(rest, count)):
        yield some


def lock(dialect: Dialect) -> Steps[None]:
    if dialect.lock:
        yield Query(dialect.lock)


def marks(count: int) -> str:
    """As many `?` as there are values."""
    return ", ".join("?" * count)


def now(dialect: Dialect) -> Steps[float]:
    """Seconds since 1970 by the database's clock, which all replicas share."""
    row = yield from one(f"SELECT {dialect.now}")
    assert row is not None  # noqa: S101 - a SELECT without a table has one row
    return float(row[0])

"""A store whose clock stands still until a test moves it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from hermes_rl.store.database.store import HEARTBEAT_TIMEOUT, Store, open_engine
from hermes_rl.store.database.transactions import (
    DatabaseEngine,
    Query,
    SharedTransaction,
    SqlDialect,
    T,
    Transaction,
    W,
)

START = 1_000_000.0


class Clock:
    """A table of one row, which the store asks for the time instead of the database's own clock."""

    now = "(SELECT seconds FROM test_clock)"

    def __init__(self, engine: DatabaseEngine) -> None:
        self._engine = engine

    async def set_up(self) -> None:
        await self._run("CREATE TABLE test_clock (seconds DOUBLE PRECISION)")
        await self._run("INSERT INTO test_clock VALUES (?)", START)

    async def advance(self, seconds: float) -> None:
        await self._run("UPDATE test_clock SET seconds = seconds + ?", seconds)

    async def _run(self, sql: str, *values: float) -> None:
        await self._engine.write(partial(_silently, sql, *values))


class ClockedEngine:
    def __init__(self, engine: DatabaseEngine) -> None:
        self._engine = engine
        self.dialect: SqlDialect = replace(engine.dialect, now=Clock.now)

    async def write(self, steps: Callable[[], Transaction[T]]) -> T:
        return await self._engine.write(steps)

    async def write_shared(self, steps: SharedTransaction[W, T], item: W, *, sort_key: str, size: int) -> T:
        return await self._engine.write_shared(steps, item, sort_key=sort_key, size=size)

    async def read(self, steps: Callable[[], Transaction[T]]) -> T:
        return await self._engine.read(steps)

    async def close(self) -> None:
        await self._engine.close()


@asynccontextmanager
async def open_clocked_store(
    address: str, *, heartbeat_timeout: float = HEARTBEAT_TIMEOUT
) -> AsyncIterator[tuple[Store, Clock]]:
    async with open_engine(address) as engine:
        clock = Clock(engine)
        await clock.set_up()
        store = Store(ClockedEngine(engine), heartbeat_timeout=heartbeat_timeout)
        try:
            yield store, clock
        finally:
            store.close()


def _silently(sql: str, *values: float) -> Transaction[None]:
    yield Query(sql, values, silent=True)

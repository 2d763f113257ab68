"""Waits for results: one database query for all waiters, whenever the database has changed.

Always true: sampling requests that no client waits for are cancelled. A killed trainer leaves minutes of them, and the
next one would queue behind them.
"""

import asyncio
import contextlib
import sqlite3
import time
from types import TracebackType
from typing import Self

from .db_watch import POLL_INTERVAL_S, ChangeWatcher

IDLE_S = 0.02
# The SDK reconnects within a second or two after a broken connection.
GRACE_S = 5.0
ABANDONED = "no client waits for this request"


class ResultWaiter:
    """Use as `async with`."""

    def __init__(self, database_url: str) -> None:
        self._changes = ChangeWatcher(database_url)
        self._database = sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None, timeout=1.0)
        self._waiting: dict[asyncio.Event, int] = {}
        self._disconnected: dict[int, float] = {}
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._watch = asyncio.create_task(self._poll())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        self._database.close()
        self._changes.close()

    async def done(self, request_id: int, seconds: float) -> bool:
        """Wait up to `seconds`; returns whether the request is done."""
        event = asyncio.Event()
        self._waiting[event] = request_id
        self._disconnected.pop(request_id, None)
        self._notify([request_id])
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
        finally:
            del self._waiting[event]
        return True

    def disconnect(self, request_id: int) -> None:
        """The waiting client disconnected; the request is cancelled unless a client asks for it again soon."""
        if request_id not in self._waiting.values():
            self._disconnected[request_id] = time.monotonic()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL_S if self._waiting else IDLE_S)
            if self._changes.changed():
                self._notify(list(set(self._waiting.values())))
            for request in [
                request for request, since in self._disconnected.items() if time.monotonic() - since > GRACE_S
            ]:
                # The database was locked for a second: the next poll retries.
                with contextlib.suppress(sqlite3.OperationalError):
                    self._abandon(request)
                    del self._disconnected[request]

    def _abandon(self, request: int) -> None:
        self._database.execute(
            "UPDATE futures SET status = 'FAILED', request_data = '{}', result_data = json_object('error', ?), "
            "completed_at = CURRENT_TIMESTAMP "
            "WHERE request_id = ? AND status = 'PENDING' AND request_type = 'SAMPLE'",
            (ABANDONED, request),
        )

    def _notify(self, requests: list[int]) -> None:
        pending: set[int] = set()
        for start in range(0, len(requests), 500):
            chunk = requests[start : start + 500]
            query = "SELECT request_id FROM futures WHERE status = 'PENDING' AND request_id IN (%s)"
            pending.update(row[0] for row in self._database.execute(query % ",".join("?" * len(chunk)), chunk))
        done = set(requests) - pending
        for event, request in self._waiting.items():
            if request in done:
                event.set()

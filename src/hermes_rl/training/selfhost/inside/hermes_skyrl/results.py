"""Waits for results: one look at the database for all who wait, whenever it has changed.

Always true: samples that nobody waits for any more are not drawn. A trainer that was killed leaves minutes of them, and
the one that is started next would wait behind them.
"""

import asyncio
import contextlib
import sqlite3
import time
from types import TracebackType
from typing import Self

from .changes import LOOK_EVERY_S, Changes

IDLE_S = 0.02
# The SDK is back within a second or two when only its connection broke.
GRACE_S = 5.0
ABANDONED = "nobody waits for it any more"


class Results:
    """Says when a request is done. Wrap it in `async with`."""

    def __init__(self, database_url: str) -> None:
        self._changes = Changes(database_url)
        self._database = sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None, timeout=1.0)
        self._waiting: dict[asyncio.Event, int] = {}
        self._left: dict[int, float] = {}
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._watch = asyncio.create_task(self._watching())
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
        """Whether it is done within that time."""
        event = asyncio.Event()
        self._waiting[event] = request_id
        self._left.pop(request_id, None)
        self._tell([request_id])
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
        finally:
            del self._waiting[event]
        return True

    def leave(self, request_id: int) -> None:
        """Whoever waited for it has hung up; unless somebody asks for it soon, it is not done."""
        if request_id not in self._waiting.values():
            self._left[request_id] = time.monotonic()

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S if self._waiting else IDLE_S)
            if self._changes.any():
                self._tell(list(set(self._waiting.values())))
            for request in [one for one, since in self._left.items() if time.monotonic() - since > GRACE_S]:
                # Busy for a second: the next look tries again.
                with contextlib.suppress(sqlite3.OperationalError):
                    self._abandon(request)
                    del self._left[request]

    def _abandon(self, request: int) -> None:
        self._database.execute(
            "UPDATE futures SET status = 'FAILED', request_data = '{}', result_data = json_object('error', ?), "
            "completed_at = CURRENT_TIMESTAMP "
            "WHERE request_id = ? AND status = 'PENDING' AND request_type = 'SAMPLE'",
            (ABANDONED, request),
        )

    def _tell(self, requests: list[int]) -> None:
        pending: set[int] = set()
        for start in range(0, len(requests), 500):
            some = requests[start : start + 500]
            query = "SELECT request_id FROM futures WHERE status = 'PENDING' AND request_id IN (%s)"
            pending.update(row[0] for row in self._database.execute(query % ",".join("?" * len(some)), some))
        done = set(requests) - pending
        for event, request in self._waiting.items():
            if request in done:
                event.set()

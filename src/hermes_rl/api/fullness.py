"""Whether the queue has room, and the news that something came in: what posts and waiting trainers share.

Always true: a post that would go beyond the limit waits, then is refused; the count is at most half a second old, so
the queue can outgrow its limit by what arrives in that time.
"""

import asyncio
from time import monotonic

from hermes_rl.api.problems import RefusedError
from hermes_rl.api.settings import ApiSettings
from hermes_rl.store.database.store import Store

FRESH = 0.5
# Other replicas' posts are seen by looking.
LOOK_AGAIN = 0.25


class Fullness:
    """Shared by all routes of one process."""

    def __init__(self, store: Store, settings: ApiSettings) -> None:
        self._store = store
        self._limit = settings.max_queued
        self._patience = settings.full_patience
        self._waiting = 0
        self._counted = -FRESH
        self._counting = asyncio.Lock()
        self._news = asyncio.Event()

    async def room(self) -> None:
        """Return once there is room in the queue; RefusedError when there was none for too long."""
        deadline = monotonic() + self._patience
        while await self._count() >= self._limit:
            if monotonic() >= deadline:
                raise RefusedError(
                    429,
                    "queue_full",
                    f"{self._waiting} rollouts wait for a trainer, and the limit is {self._limit}; keep the group and "
                    "post it again later",
                    later=True,
                )
            await asyncio.sleep(LOOK_AGAIN)

    def added(self) -> None:
        """Wake whoever waits for groups."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, seconds: float) -> None:
        """Wait until something was added here or may have been elsewhere, at most so long."""
        try:
            async with asyncio.timeout(min(seconds, LOOK_AGAIN)):
                await self._news.wait()
        except TimeoutError:
            return

    async def _count(self) -> int:
        async with self._counting:
            if monotonic() - self._counted >= FRESH:
                self._waiting = (await self._store.status()).total.waiting
                self._counted = monotonic()
        return self._waiting

"""Backpressure on posts to a full queue, and wake-ups for trainers that wait for groups.

A post beyond the limit waits, then is refused. The count is up to half a second old, so the queue can exceed its limit
by what arrives in that time.
"""

import asyncio
from time import monotonic

from hermes_rl.api.config import ApiSettings
from hermes_rl.http.errors import RefusedError
from hermes_rl.store.database.store import Store

MAX_AGE = 0.5
# Posts to other API processes are noticed only by polling.
POLL_SECONDS = 0.25


class Backpressure:
    """Shared by all routes of one process."""

    def __init__(self, store: Store, settings: ApiSettings) -> None:
        self._store = store
        self._limit = settings.max_queued
        self._patience = settings.full_patience
        self._waiting = 0
        self._counted = -MAX_AGE
        self._counting = asyncio.Lock()
        self._groups_added = asyncio.Event()

    async def wait_for_room(self) -> None:
        """Wait until the queue has room; RefusedError after `full_patience` seconds."""
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
            await asyncio.sleep(POLL_SECONDS)

    def notify_added(self) -> None:
        """Wake those waiting in `wait_for_groups`."""
        self._groups_added.set()
        self._groups_added = asyncio.Event()

    async def wait_for_groups(self, seconds: float) -> None:
        """Wait until a group is added, up to `seconds`; returns early to poll for groups added by other processes."""
        try:
            async with asyncio.timeout(min(seconds, POLL_SECONDS)):
                await self._groups_added.wait()
        except TimeoutError:
            return

    async def _count(self) -> int:
        async with self._counting:
            if monotonic() - self._counted >= MAX_AGE:
                self._waiting = (await self._store.status()).total.waiting
                self._counted = monotonic()
        return self._waiting

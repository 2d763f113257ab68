"""A cache of the queue status, shared by all Atropos environments.

Each environment polls the status ten times a second; the store is queried at most once in `MAX_AGE` seconds for all of
them, and every poll counts as a heartbeat.
"""

import asyncio
from time import monotonic, time

from hermes_rl.api.atropos.batch_response import batches_held
from hermes_rl.api.atropos.queue_view import TRAINER, QueueView, int_setting
from hermes_rl.store.database.registrations import EnvironmentRow
from hermes_rl.store.database.store import HEARTBEAT_TIMEOUT, Store

MAX_AGE = 0.1
HEARTBEAT_SECONDS = 10.0


class StatusCache:
    """Shared by the Atropos routes of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looking = asyncio.Lock()
        self._last: tuple[float, QueueView] | None = None
        self._heartbeats: dict[int, float] = {}

    async def recent(self) -> QueueView:
        async with self._looking:
            if self._last is None or monotonic() - self._last[0] >= MAX_AGE:
                self._last = (monotonic(), await self.read())
            return self._last[1]

    async def read(self) -> QueueView:
        status = await self._store.status()
        trainer = status.trainer
        # For other trainers a step is a policy version, or a batch that made none.
        step = max(status.version, status.steps)
        if trainer is not None and trainer.name == TRAINER:
            done = await self._store.acknowledged(TRAINER)
            step = int_setting(trainer.settings, "starting_step", 0) + done + len(await batches_held(self._store))
        return QueueView(status, await self._store.environments(), step)

    async def heartbeat(self, environment: int) -> None:
        """Record a heartbeat, rate-limited because each is a commit. UnknownEnvironmentError if it is not registered.

        Atropos environments do not report running rollouts, so they count as zero.
        """
        if monotonic() - self._heartbeats.get(environment, -HEARTBEAT_SECONDS) >= HEARTBEAT_SECONDS:
            await self._store.heartbeat(environment, running=0)
            self._heartbeats[environment] = monotonic()

    def forget(self, environment: int) -> None:
        """Record the next heartbeat without rate limit."""
        self._heartbeats.pop(environment, None)


def live_environments(view: QueueView) -> list[EnvironmentRow]:
    since = time() - HEARTBEAT_TIMEOUT
    return [row for row in view.environments if row.connected and row.seen_at >= since]

"""One look at the store for all who ask in the same moment.

Environments ask how the queue stands ten times a second, each of them; always true: the store is asked at most once in
`FRESH` seconds for all of them, and an environment that asks is known to live.
"""

import asyncio
from time import monotonic, time

from hermes_rl.api.atropos.delivery import held
from hermes_rl.api.atropos.standing import TRAINER, Look, whole
from hermes_rl.store.database.members import Environment
from hermes_rl.store.database.store import SILENCE, Store

FRESH = 0.1
HEARD = 10.0


class Looks:
    """Shared by the Atropos routes of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looking = asyncio.Lock()
        self._last: tuple[float, Look] | None = None
        self._heard: dict[int, float] = {}

    async def recent(self) -> Look:
        async with self._looking:
            if self._last is None or monotonic() - self._last[0] >= FRESH:
                self._last = (monotonic(), await self.now())
            return self._last[1]

    async def now(self) -> Look:
        status = await self._store.status()
        trainer = status.trainer
        # Another trainer's steps are the versions of the policy it makes.
        step = status.version
        if trainer is not None and trainer.name == TRAINER:
            done = await self._store.acknowledged(TRAINER)
            step = whole(trainer.settings, "starting_step", 0) + done + len(await held(self._store))
        return Look(status, await self._store.environments(), step)

    async def hear(self, environment: int) -> None:
        """Note that it lives, now and then: each time is a commit. UnknownEnvironmentError for one that is not known.

        What Atropos' environments run they do not say, so it counts as nothing.
        """
        if monotonic() - self._heard.get(environment, -HEARD) >= HEARD:
            await self._store.heartbeat(environment, running=0)
            self._heard[environment] = monotonic()

    def unhear(self, environment: int) -> None:
        """Note its next word at once."""
        self._heard.pop(environment, None)


def living(look: Look) -> list[Environment]:
    since = time() - SILENCE
    return [one for one in look.environments if one.connected and one.seen_at >= since]

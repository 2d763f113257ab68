"""Delivery of finished groups to the API: spooled to disk, then posted one at a time, oldest first.

A spooled group reaches the API as soon as it answers, from this process or the next. A refused group is set aside and
does not block others. While the API is unavailable the spool grows.
"""

import asyncio
import time
from types import TracebackType
from typing import Self

from hermes_rl import tracing
from hermes_rl.api.client.connection import ApiError, ApiUnavailableError
from hermes_rl.api.client.destination import Destination
from hermes_rl.api.client.spool import Spool, Spooled
from hermes_rl.core.backoff import Backoff

# The group itself is invalid. Other errors, such as a changed token, may go away.
BAD_GROUP_STATUSES = frozenset({400, 413, 415, 422})


class Delivery:
    """Posts spooled groups inside `async with`.

    For dashboards: counts of `posted`, `refused` and `spooled` groups, since when posting fails (`away_since`, a
    time.time value), and the error of the last attempt (`last_error`, None if it succeeded).
    """

    def __init__(self, destination: Destination, spool: Spool) -> None:
        self.posted = 0
        self.refused = 0
        self.away_since: float | None = None
        self.last_error: str | None = None
        self._destination = destination
        self._spool = spool
        self._hurry = asyncio.Event()
        self._posting: asyncio.Task[None] | None = None

    @property
    def spooled(self) -> int:
        return len(self._spool)

    async def __aenter__(self) -> Self:
        self._posting = asyncio.create_task(self._post_all())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._posting is not None:
            self._posting.cancel()
            await asyncio.wait([self._posting])
            self._raise_if_broken()

    async def put(self, data: bytes, draw: int) -> None:
        """Spool a group in its binary form; it is durable when this returns. Waits while the spool is full."""
        self._raise_if_broken()
        await self._spool.put(draw, data)

    async def flush(self, seconds: float) -> int:
        """Post spooled groups for up to `seconds`, without backoff; returns how many are left."""
        self._hurry.set()
        emptied = asyncio.create_task(self._spool.emptied())
        try:
            await asyncio.wait(
                [emptied, *([self._posting] if self._posting else [])],
                timeout=seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            emptied.cancel()
        self._raise_if_broken()
        return len(self._spool)

    async def _post_all(self) -> None:
        backoff = Backoff()
        while True:
            group = await self._spool.oldest()
            try:
                await self._post(group)
            except (ApiError, OSError) as error:
                self.last_error = str(error)
                self.away_since = self.away_since or time.time()
                requested = error.retry_after if isinstance(error, ApiUnavailableError) else None
                await self._pause(max(backoff.next(), requested or 0.0))
            else:
                self.away_since = None
                backoff.reset()

    async def _post(self, group: Spooled) -> None:
        data = await self._spool.read(group)
        try:
            with tracing.span("deliver") as span:
                span.set_attributes(draw=group.draw, bytes=len(data))
                await self._destination.post(data)
        except ApiError as error:
            if error.status not in BAD_GROUP_STATUSES:
                raise
            self.last_error = f"{error.status} {error.kind}: {error}"
            await self._spool.refuse(group, self.last_error)
            self.refused += 1
        else:
            await self._spool.remove(group)
            self.posted += 1
            self.last_error = None

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass
        self._hurry.clear()

    def _raise_if_broken(self) -> None:
        if self._posting is not None and self._posting.done() and not self._posting.cancelled():
            self._posting.result()

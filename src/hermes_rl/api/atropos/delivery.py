"""A batch on its way to an Atropos trainer.

Atropos has no acknowledgement: a trainer only asks for the next batch. Always true: a batch that was sent to its last
byte stays the trainer's for a week, and counts as trained on when it asks for the next; one whose sending ended early
is given back at once, and within `SENDING` seconds when this process died of it, so that its groups go out again from
their old places; so does what the trainer holds when it registers again. What this cannot see is a trainer that was
sent everything and lost it: it registers again, or that batch counts as trained on.
"""

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from itertools import chain
from time import monotonic, time

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hermes_rl.api.atropos.batch_json import scored_data_json
from hermes_rl.api.atropos.standing import TRAINER
from hermes_rl.store.database.errors import LeaseLostError, StoreError
from hermes_rl.store.database.leases import Batch
from hermes_rl.store.database.store import Store

log = logging.getLogger(__name__)

SENDING = 30.0
HELD = 7 * 86_400.0
# A lease that is longer than any sending was sent whole.
SENT_WHOLE = 3_600.0
# A trainer that reads nothing for so long is gone.
STALLED = 300.0
TOGETHER = 2**18


class NotSentError(Exception):
    """The batch did not reach the trainer."""


async def next_batch(store: Store) -> Batch | None:
    """End what the trainer had, and lease the next; UnknownTrainerError when none registered."""
    for batch in await held(store):
        # It was in a reset or with another: then there is nothing to acknowledge.
        with suppress(LeaseLostError):
            await store.ack(batch)
    return await store.lease(TRAINER, seconds=SENDING)


async def held(store: Store) -> list[int]:
    """The batches that the trainer has been sent whole and that are not acknowledged."""
    found = [await store.batch(number) for number in await store.open_batches(TRAINER)]
    return [batch.id for batch in found if batch is not None and batch.expires_at - time() > SENT_WHOLE]


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding asks for gzip."""
    for part in header.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "").rstrip("0").rstrip(".") != "q="
    return False


class BatchResponse(Response):
    """Sends a leased batch group by group, and then says what became of it."""

    media_type = "application/json"

    def __init__(self, store: Store, batch: Batch, worker: Executor, *, packed: bool) -> None:
        super().__init__()
        del self.headers["content-length"]
        if packed:
            self.headers["content-encoding"] = "gzip"
        self._store = store
        self._batch = batch
        self._worker = worker
        self._packer = zlib.compressobj(1, zlib.DEFLATED, 31) if packed else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            extended = monotonic()
            async for piece in self._pieces():
                if gone.done():
                    raise NotSentError("the trainer hung up")
                if monotonic() - extended > SENDING / 3:
                    await self._store.extend(self._batch.id, SENDING)
                    extended = monotonic()
                async with asyncio.timeout(STALLED):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            # Before the last byte: the trainer's next question could come faster than a word after it.
            await self._store.extend(self._batch.id, HELD)
            if gone.done():
                raise NotSentError("the trainer hung up")
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except BaseException as error:
            with suppress(StoreError):
                await self._store.release(self._batch.id)
            # An answer without its end breaks the connection, which is how the trainer learns of it.
            if not isinstance(error, NotSentError | StoreError | TimeoutError | OSError):
                raise
            log.warning("batch %d was given back: %r", self._batch.id, error)
        finally:
            gone.cancel()

    async def _pieces(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        opening = b'{"batch":['
        for group in self._batch.groups:
            stored = await self._store.group(group.place)
            if stored is None or stored.data is None:
                raise NotSentError(f"the bytes of the group in place {group.place} were let go")
            parts = chain([opening], scored_data_json(stored.data, stored.environment))
            while (piece := await loop.run_in_executor(self._worker, self._some, parts)) is not None:
                yield piece
            opening = b","
        yield self._packed(b"]}") + (self._packer.flush() if self._packer else b"")

    def _some(self, parts: Iterator[bytes]) -> bytes | None:
        """The next parts together, packed; None after the last."""
        some: list[bytes] = []
        size = 0
        for part in parts:
            some.append(part)
            size += len(part)
            if size >= TOGETHER:
                break
        return self._packed(b"".join(some)) if some else None

    def _packed(self, data: bytes) -> bytes:
        return self._packer.compress(data) if self._packer else data


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""Sending a batch to an Atropos trainer.

Atropos has no acknowledgement: a trainer just requests the next batch. A batch sent to its last byte stays leased for a
week and counts as trained on at the next request. An interrupted batch is released immediately (within `SENDING`
seconds if this process died), and its groups return to their positions; so do a trainer's batches when it registers
again. A trainer that received a whole batch and lost it must register again, or the batch counts as trained on.
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
from hermes_rl.api.atropos.queue_view import TRAINER
from hermes_rl.store.database.errors import LeaseLostError, StoreError
from hermes_rl.store.database.leases import BatchLease
from hermes_rl.store.database.store import Store

log = logging.getLogger(__name__)

SENDING = 30.0
HELD = 7 * 86_400.0
# A longer lease means the batch was sent completely.
SENT_WHOLE = 3_600.0
# A trainer that reads nothing for this long is gone.
SEND_TIMEOUT = 300.0
CHUNK_BYTES = 2**18


class NotSentError(Exception):
    """The batch did not reach the trainer."""


async def next_batch(store: Store) -> BatchLease | None:
    """Acknowledge the last batch and lease the next; UnknownTrainerError if no trainer registered."""
    for batch in await batches_held(store):
        # After a reset, or if another trainer has it, there is nothing to acknowledge.
        with suppress(LeaseLostError):
            await store.ack(batch)
    return await store.lease(TRAINER, seconds=SENDING)


async def batches_held(store: Store) -> list[int]:
    """Batches sent completely to the trainer and not yet acknowledged."""
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
    """Sends a leased batch group by group, then extends or releases its lease."""

    media_type = "application/json"

    def __init__(self, store: Store, batch: BatchLease, worker: Executor, *, packed: bool) -> None:
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
                async with asyncio.timeout(SEND_TIMEOUT):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            # Before the last byte: the trainer's next request could arrive before an update made after it.
            await self._store.extend(self._batch.id, HELD)
            if gone.done():
                raise NotSentError("the trainer hung up")
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except BaseException as error:
            with suppress(StoreError):
                await self._store.release(self._batch.id)
            # A truncated response breaks the connection, which tells the trainer.
            if not isinstance(error, NotSentError | StoreError | TimeoutError | OSError):
                raise
            log.warning("batch %d was released: %r", self._batch.id, error)
        finally:
            gone.cancel()

    async def _pieces(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        opening = b'{"batch":['
        for group in self._batch.groups:
            stored = await self._store.group(group.place)
            if stored is None or stored.data is None:
                raise NotSentError(
                    f"the data of the group at position {group.place} was deleted by the retention policy"
                )
            parts = chain([opening], scored_data_json(stored.data, stored.environment))
            while (piece := await loop.run_in_executor(self._worker, self._next_chunk, parts)) is not None:
                yield piece
            opening = b","
        yield self._packed(b"]}") + (self._packer.flush() if self._packer else b"")

    def _next_chunk(self, parts: Iterator[bytes]) -> bytes | None:
        """The next parts joined and compressed; None after the last."""
        chunk: list[bytes] = []
        size = 0
        for part in parts:
            chunk.append(part)
            size += len(part)
            if size >= CHUNK_BYTES:
                break
        return self._packed(b"".join(chunk)) if chunk else None

    def _packed(self, data: bytes) -> bytes:
        return self._packer.compress(data) if self._packer else data


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""Batches on loan to trainers: leased, read, extended, acknowledged or given back.

Always true: the bytes of a batch can be read again as long as it is on loan; nobody else is given its groups meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from time import monotonic
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from hermes_rl.api.fullness import Fullness
from hermes_rl.api.problems import RefusedError
from hermes_rl.api.routes.numbers import Number
from hermes_rl.api.wire import (
    FRAME,
    GROUPS_TYPE,
    BatchNumbers,
    Ended,
    Extended,
    Extension,
    LeasedBatch,
    LeaseRequest,
    framed,
)
from hermes_rl.store.database.leases import Batch
from hermes_rl.store.database.store import Store

GROUPS_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {GROUPS_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}


def batch_routes(store: Store, fullness: Fullness) -> APIRouter:
    routes = APIRouter(prefix="/v1/batches", tags=["batches"])

    @routes.post("", responses={204: {"description": "There is no batch yet."}})
    async def lease(wish: LeaseRequest, request: Request) -> LeasedBatch | None:
        """The oldest whole groups that make a batch, on loan; 204 while there are too few, after `wait` seconds."""
        deadline = monotonic() + wish.wait
        while not await request.is_disconnected():
            batch = await store.lease(
                wish.trainer, seconds=wish.seconds, batch_size=wish.batch_size, request=wish.request
            )
            left = deadline - monotonic()
            if batch is not None:
                return _told(batch)
            if left <= 0:
                break
            await fullness.news(left)
        return Response(status_code=204)  # type: ignore[return-value]

    @routes.post("/acknowledge")
    async def acknowledge(done: BatchNumbers) -> Ended:
        """Say that all of them were trained on, or none. `count` were not acknowledged before."""
        return Ended(count=await store.ack(*done.batches))

    @routes.post("/release")
    async def release(back: BatchNumbers) -> Ended:
        """Give batches back: their groups return to their old places."""
        return Ended(count=await store.release(*back.batches))

    @routes.get("/{batch:int}")
    async def find_batch(batch: Number) -> LeasedBatch:
        return _told(await _found(store, batch))

    @routes.get("/{batch:int}/groups", responses=GROUPS_ANSWER, response_class=StreamingResponse)
    async def batch_groups(batch: Number) -> StreamingResponse:
        """The groups of a batch in their binary form, each behind its length in eight bytes."""
        found = await _found(store, batch)
        size = sum(FRAME.size + group.bytes for group in found.groups)
        data = _bytes(store, found)
        # What is gone is told before the answer begins.
        first = await anext(data, None)
        return StreamingResponse(
            framed(_after(first, data)), media_type=GROUPS_TYPE, headers={"Content-Length": str(size)}
        )

    @routes.post("/{batch:int}/extend")
    async def extend(batch: Number, extension: Extension) -> Extended:
        """Keep a batch for so many seconds from now."""
        return Extended(expires_at=await store.extend(batch, extension.seconds))

    return routes


async def _found(store: Store, batch: int) -> Batch:
    found = await store.batch(batch)
    if found is None:
        raise RefusedError(404, "unknown_batch", f"there is no batch {batch}")
    return found


async def _bytes(store: Store, batch: Batch) -> AsyncIterator[bytes]:
    """The bytes of each group, the next one read while one is sent."""
    reading: asyncio.Task[bytes] | None = None
    try:
        for group in batch.groups:
            ahead = asyncio.create_task(_group_bytes(store, group.place))
            if reading is not None:
                yield await reading
            reading = ahead
        if reading is not None:
            yield await reading
    finally:
        if reading is not None:
            reading.cancel()


async def _group_bytes(store: Store, place: int) -> bytes:
    group = await store.group(place)
    if group is None or group.data is None:
        raise RefusedError(410, "gone", f"the bytes of the group in place {place} were let go")
    return group.data


async def _after(first: bytes | None, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first is not None:
        yield first
    async for data in rest:
        yield data


def _told(batch: Batch) -> LeasedBatch:
    return LeasedBatch.model_validate(asdict(batch), strict=False)

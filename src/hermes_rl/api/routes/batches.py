"""Batch leases: lease, read, extend, acknowledge, release.

A leased batch can be read any number of times, and its groups are not leased to others meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from time import monotonic
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from hermes_rl.api.backpressure import Backpressure
from hermes_rl.api.routes.path_params import Number
from hermes_rl.api.schemas import (
    FRAME,
    GROUPS_TYPE,
    BatchNumbers,
    Ended,
    Extended,
    LeasedBatch,
    LeaseExtension,
    LeaseRequest,
    frame_groups,
)
from hermes_rl.http.errors import RefusedError
from hermes_rl.store.database.leases import BatchLease
from hermes_rl.store.database.store import Store

GROUPS_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {GROUPS_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}


def batch_routes(store: Store, backpressure: Backpressure) -> APIRouter:
    routes = APIRouter(prefix="/v1/batches", tags=["batches"])

    @routes.post("", responses={204: {"description": "No batch is available yet."}})
    async def lease(body: LeaseRequest, request: Request) -> LeasedBatch | None:
        """Lease the oldest groups that make a batch; 204 if there are too few after `wait` seconds."""
        deadline = monotonic() + body.wait
        while not await request.is_disconnected():
            batch = await store.lease(
                body.trainer, seconds=body.seconds, batch_size=body.batch_size, request=body.request
            )
            left = deadline - monotonic()
            if batch is not None:
                return _leased(batch)
            if left <= 0:
                break
            await backpressure.wait_for_groups(left)
        return Response(status_code=204)  # type: ignore[return-value]

    @routes.post("/acknowledge")
    async def acknowledge(body: BatchNumbers) -> Ended:
        """Mark batches as trained on, all or none. `count` were not acknowledged before."""
        return Ended(count=await store.ack(*body.batches))

    @routes.post("/release")
    async def release(body: BatchNumbers) -> Ended:
        """Return batches: their groups go back to their positions in the queue."""
        return Ended(count=await store.release(*body.batches))

    @routes.get("/{batch:int}")
    async def find_batch(batch: Number) -> LeasedBatch:
        return _leased(await _found(store, batch))

    @routes.get("/{batch:int}/groups", responses=GROUPS_ANSWER, response_class=StreamingResponse)
    async def batch_groups(batch: Number) -> StreamingResponse:
        """The groups of a batch in their binary form, each prefixed by its length in eight bytes."""
        found = await _found(store, batch)
        size = sum(FRAME.size + group.bytes for group in found.groups)
        data = _bytes(store, found)
        # A missing group must be reported before the response starts.
        first = await anext(data, None)
        return StreamingResponse(
            frame_groups(_prepend(first, data)), media_type=GROUPS_TYPE, headers={"Content-Length": str(size)}
        )

    @routes.post("/{batch:int}/extend")
    async def extend(batch: Number, extension: LeaseExtension) -> Extended:
        """Extend the lease to `seconds` from now."""
        return Extended(expires_at=await store.extend(batch, extension.seconds))

    return routes


async def _found(store: Store, batch: int) -> BatchLease:
    found = await store.batch(batch)
    if found is None:
        raise RefusedError(404, "unknown_batch", f"no batch {batch}")
    return found


async def _bytes(store: Store, batch: BatchLease) -> AsyncIterator[bytes]:
    """The bytes of each group; reads the next group while one is sent."""
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


async def _group_bytes(store: Store, position: int) -> bytes:
    group = await store.group(position)
    if group is None or group.data is None:
        raise RefusedError(
            410, "gone", f"the data of the group at position {position} was deleted by the retention policy"
        )
    return group.data


async def _prepend(first: bytes | None, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first is not None:
        yield first
    async for data in rest:
        yield data


def _leased(batch: BatchLease) -> LeasedBatch:
    return LeasedBatch.model_validate(asdict(batch), strict=False)

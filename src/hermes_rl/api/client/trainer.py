"""The trainer's client: lease, read and acknowledge batches.

A call with a lost response is retried and gets the same answer, so no lease is leaked. A batch is read completely and
in order, or an ApiError is raised.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import quote

from aiohttp import StreamReader

from hermes_rl import tracing
from hermes_rl.api.client.connection import DEADLINE, ApiConnection, ApiError, ApiUnavailableError
from hermes_rl.api.schemas import (
    FRAME,
    BatchNumbers,
    Ended,
    Extended,
    LeasedBatch,
    LeasedGroup,
    LeaseExtension,
    LeaseRequest,
    PolicyVersion,
    QueueStatus,
    TrainerRegistration,
    VersionSet,
)
from hermes_rl.core.backoff import Backoff
from hermes_rl.core.trajectory import Group
from hermes_rl.store.codec import decode

LEASE_TIME = 600.0
# Long enough to restart an API or its machine.
PATIENCE = 600.0
# The longest wait the API accepts in one request.
LONG_POLL = 30.0
Need = Literal["logprobs", "versions", "one_sequence"]
NEEDS: tuple[Need, ...] = ("logprobs", "versions")


class TrainerClient:
    """One trainer process at the API. Retries for `patience` seconds while the API is unavailable."""

    def __init__(self, connection: ApiConnection, name: str, *, patience: float = PATIENCE) -> None:
        self.name = name
        self.life = f"{name}/{uuid.uuid4().hex}"
        self._connection = connection
        self._patience = patience
        self._registration: TrainerRegistration | None = None
        self._request: str | None = None
        self._held: set[int] = set()

    async def register(
        self,
        batch_size: int,
        max_staleness: int | None = None,
        *,
        needs: Sequence[Need] = NEEDS,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Register for batches of `batch_size` rollouts, none more than `max_staleness` versions old."""
        self._registration = TrainerRegistration(
            name=self.name,
            batch_size=batch_size,
            max_staleness=max_staleness,
            needs=list(needs),
            settings=dict(settings or {}),
        )
        await self._ask("POST", "/v1/trainers", self._registration)

    async def lease(
        self, *, wait: float = LONG_POLL, seconds: float = LEASE_TIME, batch_size: int | None = None
    ) -> LeasedBatch | None:
        """Lease the next batch for `seconds`; None if there is none within `wait` seconds."""
        # A cancelled call may have leased a batch: the next call gets that batch.
        self._request = self._request or uuid.uuid4().hex
        end = time.monotonic() + wait
        while True:
            poll = min(max(end - time.monotonic(), 0.0), LONG_POLL)
            request = LeaseRequest(
                trainer=self.name, seconds=seconds, batch_size=batch_size, request=self._request, wait=poll
            )
            data = await self._leased(request)
            if data:
                self._request = None
                return self._connection.read(LeasedBatch, data)
            if time.monotonic() >= end:
                return None

    async def groups(self, batch: LeasedBatch) -> AsyncIterator[bytes]:
        """The batch's groups in order, in their binary form. Resumes if the response is interrupted."""
        received, backoff, end = 0, Backoff(), time.monotonic() + self._patience
        while received < len(batch.groups):
            try:
                async with self._connection.stream(f"/v1/batches/{batch.id}/groups") as stream:
                    for index, group in enumerate(batch.groups):
                        data = await _read_group(stream, group)
                        if index == received:
                            yield data
                            received += 1
                            backoff.reset()
                            end = time.monotonic() + self._patience
            except ApiUnavailableError:
                if time.monotonic() >= end:
                    raise
                await asyncio.sleep(backoff.next())

    async def decoded(self, batch: LeasedBatch) -> AsyncIterator[Group]:
        """The batch's groups, decoded in a thread. `open_group` is cheaper if only the columns are needed."""
        async for data in self.groups(batch):
            yield await asyncio.to_thread(decode, data)

    async def extend(self, batch: LeasedBatch | int, seconds: float = LEASE_TIME) -> float:
        """Extend a lease to `seconds` from now; returns its expiry. ApiError of kind lease_lost if it expired."""
        path = f"/v1/batches/{_number(batch)}/extend"
        data = await self._ask("POST", path, LeaseExtension(seconds=seconds))
        return self._connection.read(Extended, data).expires_at

    async def acknowledge(self, *batches: LeasedBatch | int) -> int:
        """Mark batches as trained on, once their steps are durable; returns how many were not acknowledged before."""
        return await self._end("acknowledge", batches)

    async def release(self, *batches: LeasedBatch | int) -> int:
        """Return batches to their positions in the queue; returns how many were still leased."""
        return await self._end("release", batches)

    async def on_loan(self) -> list[int]:
        """Batches leased under this name; a resumed trainer releases those it did not train on."""
        data = await self._ask("GET", f"/v1/trainers/{quote(self.name, safe='')}/batches")
        return self._connection.read(BatchNumbers, data).batches

    async def batch(self, number: int) -> LeasedBatch:
        """A leased batch by its number."""
        return self._connection.read(LeasedBatch, await self._ask("GET", f"/v1/batches/{number}"))

    async def version(self) -> int:
        """The current policy version; a resumed trainer continues from it, or from its own later one."""
        return self._connection.read(QueueStatus, await self._ask("GET", "/v1/status")).version

    async def set_version(self, version: int) -> bool:
        """Publish a policy version, above all earlier ones; returns whether it is new."""
        data = await self._ask("POST", "/v1/version", PolicyVersion(version=version, by=self.life))
        return self._connection.read(VersionSet, data).new

    @asynccontextmanager
    async def held(self, batch: LeasedBatch, seconds: float = LEASE_TIME) -> AsyncIterator[LeasedBatch]:
        """Keep a batch leased while the body runs; if the lease is lost, the body is cancelled and the ApiError raised.

        The body must leave the event loop free: train in a thread (`asyncio.to_thread`).
        """
        body = asyncio.current_task()
        ended = False

        def end_body(keeping: asyncio.Task[None]) -> None:
            if body is not None and not ended and not keeping.cancelled() and keeping.exception() is not None:
                body.cancel()

        self._held.add(batch.id)
        keeping = asyncio.create_task(self._keep(batch, seconds))
        keeping.add_done_callback(end_body)
        try:
            yield batch
        except asyncio.CancelledError:
            lost = keeping.exception() if keeping.done() and not keeping.cancelled() else None
            if lost is None or body is None or body.uncancel() > 0:
                raise
            raise lost from None
        finally:
            ended = True
            keeping.cancel()
            await asyncio.wait([keeping])
            self._held.discard(batch.id)

    async def _keep(self, batch: LeasedBatch, seconds: float) -> None:
        """Extend the lease until the body acknowledges or releases the batch."""
        while batch.id in self._held:
            await asyncio.sleep(seconds / 3)
            try:
                await self.extend(batch, seconds)
            except ApiUnavailableError:
                # An unavailable API cannot lease the batch to others either.
                continue
            except ApiError:
                if batch.id in self._held:
                    raise

    async def _leased(self, request: LeaseRequest) -> bytes:
        try:
            with tracing.span("lease"):
                return await self._ask("POST", "/v1/batches", request, deadline=request.wait + DEADLINE)
        except ApiError as error:
            # An API with a new store has lost the registration.
            if error.kind != "unknown_trainer" or self._registration is None:
                raise
        await self._ask("POST", "/v1/trainers", self._registration)
        return await self._ask("POST", "/v1/batches", request, deadline=request.wait + DEADLINE)

    async def _end(self, how: str, batches: Sequence[LeasedBatch | int]) -> int:
        if not batches:
            return 0
        numbers = BatchNumbers(batches=[_number(batch) for batch in batches])
        self._held.difference_update(numbers.batches)
        with tracing.span(how):
            return self._connection.read(Ended, await self._ask("POST", f"/v1/batches/{how}", numbers)).count

    async def _ask(self, method: str, path: str, body: Any = None, *, deadline: float = DEADLINE) -> bytes:
        return await self._connection.request(method, path, body, deadline=deadline, patience=self._patience)


async def _read_group(stream: StreamReader, group: LeasedGroup) -> bytes:
    """Read the next group of a stream and check its length."""
    try:
        (length,) = FRAME.unpack(await stream.readexactly(FRAME.size))
        if length != group.bytes:
            raise ApiUnavailableError(
                f"group {group.id} has {length} bytes in the response instead of {group.bytes}", kind="bad_answer"
            )
        return await stream.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise ApiUnavailableError(f"the response ended within group {group.id}", kind="bad_answer") from error


def _number(batch: LeasedBatch | int) -> int:
    return batch if isinstance(batch, int) else batch.id

"""A trainer's way to its batches: lease, read, acknowledge.

Always true: a call whose answer was lost is asked again and answered as the first time, so no batch is left behind on
loan; a batch is read whole and in order or an ApiError is raised.
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
from hermes_rl.api.client.backoff import Backoff
from hermes_rl.api.client.connection import DEADLINE, ApiError, ApiUnavailableError, Connection
from hermes_rl.api.wire import (
    FRAME,
    BatchNumbers,
    Ended,
    Extended,
    Extension,
    LeasedBatch,
    LeasedGroup,
    LeaseRequest,
    PolicyVersion,
    QueueStatus,
    TrainerRegistration,
    VersionSet,
)
from hermes_rl.store.codec import decode
from hermes_rl.trajectory import Group

LEASE_TIME = 600.0
# An API that is started again, or whose machine is, comes back within this.
PATIENCE = 600.0
# The longest wait the API takes in one request.
LONG_POLL = 30.0
Need = Literal["logprobs", "versions", "one_sequence"]
NEEDS: tuple[Need, ...] = ("logprobs", "versions")


class TrainerClient:
    """One life of one trainer at the API. Waits for `patience` seconds where the API is away."""

    def __init__(self, connection: Connection, name: str, *, patience: float = PATIENCE) -> None:
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
        """Ask for batches of so many rollouts, none staler than so many versions. It is remembered by the API."""
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
        """The next batch, on loan for so many seconds; None when there was none within `wait`."""
        # A call that was given up may have leased a batch: the next call asks for that one.
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
        """The batch's groups in their binary form and order. Where the answer breaks off it is asked for again."""
        taken, backoff, end = 0, Backoff(), time.monotonic() + self._patience
        while taken < len(batch.groups):
            try:
                async with self._connection.stream(f"/v1/batches/{batch.id}/groups") as stream:
                    for index, group in enumerate(batch.groups):
                        data = await _framed(stream, group)
                        if index == taken:
                            yield data
                            taken += 1
                            backoff.reset()
                            end = time.monotonic() + self._patience
            except ApiUnavailableError:
                if time.monotonic() >= end:
                    raise
                await asyncio.sleep(backoff.next())

    async def decoded(self, batch: LeasedBatch) -> AsyncIterator[Group]:
        """The batch's groups, decoded beside the event loop. A trainer that needs numbers only reads `open_group`."""
        async for data in self.groups(batch):
            yield await asyncio.to_thread(decode, data)

    async def extend(self, batch: LeasedBatch | int, seconds: float = LEASE_TIME) -> float:
        """Keep a batch for so many seconds from now; until when. ApiError of kind lease_lost when it is too late."""
        path = f"/v1/batches/{_number(batch)}/extend"
        data = await self._ask("POST", path, Extension(seconds=seconds))
        return self._connection.read(Extended, data).expires_at

    async def acknowledge(self, *batches: LeasedBatch | int) -> int:
        """Say that all of them were trained on, once their steps are safe; how many were not acknowledged before."""
        return await self._end("acknowledge", batches)

    async def release(self, *batches: LeasedBatch | int) -> int:
        """Give batches back, their groups to their old places; how many were still held."""
        return await self._end("release", batches)

    async def on_loan(self) -> list[int]:
        """What this trainer has on loan, from earlier lives too; a resumed one releases what it did not train on."""
        data = await self._ask("GET", f"/v1/trainers/{quote(self.name, safe='')}/batches")
        return self._connection.read(BatchNumbers, data).batches

    async def batch(self, number: int) -> LeasedBatch:
        """A batch by its number, as `on_loan` gives it."""
        return self._connection.read(LeasedBatch, await self._ask("GET", f"/v1/batches/{number}"))

    async def version(self) -> int:
        """The policy's version; a resumed trainer goes on from here, or from a later one of its own."""
        return self._connection.read(QueueStatus, await self._ask("GET", "/v1/status")).version

    async def set_version(self, version: int) -> bool:
        """Say that the policy has a new version, above all before it; whether it was said for the first time."""
        data = await self._ask("POST", "/v1/version", PolicyVersion(version=version, by=self.life))
        return self._connection.read(VersionSet, data).new

    @asynccontextmanager
    async def held(self, batch: LeasedBatch, seconds: float = LEASE_TIME) -> AsyncIterator[LeasedBatch]:
        """Keep a batch on loan while the body runs; where it is lost all the same, the body ends with that ApiError.

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
        """Extend the loan until the body gives it up itself, by an acknowledgement or a release."""
        while batch.id in self._held:
            await asyncio.sleep(seconds / 3)
            try:
                await self.extend(batch, seconds)
            except ApiUnavailableError:
                # While the API is away nobody else is given the batch either.
                continue
            except ApiError:
                if batch.id in self._held:
                    raise

    async def _leased(self, request: LeaseRequest) -> bytes:
        try:
            with tracing.span("lease"):
                return await self._ask("POST", "/v1/batches", request, deadline=request.wait + DEADLINE)
        except ApiError as error:
            # An API on a new store knows nobody.
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


async def _framed(stream: StreamReader, group: LeasedGroup) -> bytes:
    """The next group of a stream, of the length it must have."""
    try:
        (length,) = FRAME.unpack(await stream.readexactly(FRAME.size))
        if length != group.bytes:
            raise ApiUnavailableError(
                f"group {group.id} came with {length} bytes instead of {group.bytes}", kind="bad_answer"
            )
        return await stream.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise ApiUnavailableError(f"the answer broke off in group {group.id}", kind="bad_answer") from error


def _number(batch: LeasedBatch | int) -> int:
    return batch if isinstance(batch, int) else batch.id

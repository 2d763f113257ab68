"""Storing posted groups.

A post is on disk before it is answered, and a repeated post counts once. A post to a full queue waits, then gets a 503:
atroposlib retries a 503 but drops a group after any 4xx. Environments keep their numbers across restarts of the API, so
an unknown number is refused; a post without a number goes to a placeholder environment.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from fastapi import Request

from hermes_rl.api.atropos.bodies import decode_body
from hermes_rl.api.backpressure import Backpressure
from hermes_rl.http.bodies import BodyReader
from hermes_rl.http.errors import RefusedError
from hermes_rl.store.database.errors import UnknownEnvironmentError
from hermes_rl.store.database.store import Store

UNREGISTERED = "atropos-unregistered"
# Parsed JSON takes several times its size in memory.
LARGEST = 128 * 2**20


class AtroposIngest:
    """Parses posts one at a time in `worker`. `largest` limits the decompressed size of a post in bytes."""

    def __init__(
        self, store: Store, bodies: BodyReader, backpressure: Backpressure, worker: Executor, *, largest: int = LARGEST
    ) -> None:
        self._store = store
        self._bodies = bodies
        self._backpressure = backpressure
        self._worker = worker
        self._largest = largest

    async def take(self, request: Request, read: Callable[[bytes], list[tuple[int | None, bytes]]]) -> int:
        """Store the groups that `read` makes of the body; returns their number."""
        await self._wait_for_room()
        encoding = request.headers.get("content-encoding", "")
        async with self._bodies.read(request) as data:
            groups = await asyncio.get_running_loop().run_in_executor(
                self._worker, lambda: read(decode_body(data, encoding, self._largest))
            )
        for number, group in groups:
            environment = (await self._store.register_environment(UNREGISTERED)).id if number is None else number
            with unknown_env_as_404():
                await self._store.add(environment, group)
            self._backpressure.notify_added()
        return len(groups)

    async def _wait_for_room(self) -> None:
        try:
            await self._backpressure.wait_for_room()
        except RefusedError as error:
            raise RefusedError(503, error.kind, str(error), later=True) from None


@contextmanager
def unknown_env_as_404() -> Iterator[None]:
    """Refuse an unknown environment with the name of its field."""
    try:
        yield
    except UnknownEnvironmentError as error:
        raise RefusedError(404, "unknown_environment", f"env_id: {error}", field="env_id") from None

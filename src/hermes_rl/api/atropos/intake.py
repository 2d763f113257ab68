"""Posts on their way into the store.

Always true: a post that is answered is on disk, and one that is made again counts once; a post to a full queue is held,
then told to come again by 503, which atroposlib repeats, where it drops what any 4xx refused. Environments keep their
numbers over restarts of the API, so a number that nobody has is a mistake and is refused; a post that names no
environment goes to one that stands in for it.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from fastapi import Request

from hermes_rl.api.atropos.bodies import unpacked
from hermes_rl.api.door import Bodies
from hermes_rl.api.fullness import Fullness
from hermes_rl.api.problems import RefusedError
from hermes_rl.store.database.errors import UnknownEnvironmentError
from hermes_rl.store.database.store import Store

NOBODY = "atropos-unregistered"
# What JSON is read into takes several times its size.
LARGEST = 128 * 2**20


class Intake:
    """Takes groups for the store, one post at a time in `worker`. `largest` bounds the text of a post, unpacked."""

    def __init__(
        self, store: Store, bodies: Bodies, fullness: Fullness, worker: Executor, *, largest: int = LARGEST
    ) -> None:
        self._store = store
        self._bodies = bodies
        self._fullness = fullness
        self._worker = worker
        self._largest = largest

    async def take(self, request: Request, read: Callable[[bytes], list[tuple[int | None, bytes]]]) -> int:
        """Keep what `read` makes of the body; how many groups that were."""
        await self._room()
        encoding = request.headers.get("content-encoding", "")
        async with self._bodies.read(request) as data:
            groups = await asyncio.get_running_loop().run_in_executor(
                self._worker, lambda: read(unpacked(data, encoding, self._largest))
            )
        for number, group in groups:
            environment = (await self._store.register_environment(NOBODY)).id if number is None else number
            with naming_env_id():
                await self._store.add(environment, group)
            self._fullness.added()
        return len(groups)

    async def _room(self) -> None:
        try:
            await self._fullness.room()
        except RefusedError as error:
            raise RefusedError(503, error.kind, str(error), later=True) from None


@contextmanager
def naming_env_id() -> Iterator[None]:
    """Say which field names an environment that is not known."""
    try:
        yield
    except UnknownEnvironmentError as error:
        raise RefusedError(404, "unknown_environment", f"env_id: {error}", field="env_id") from None

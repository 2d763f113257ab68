"""The durable store: what is finished is kept, in order, and trained on once.

Always true: what a call answered is on disk; a call whose answer was lost may be made again, only metrics would stand
there twice; nothing is held in memory between calls, so replicas over one database are alike.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hermes_rl.store.database import admission, groups, leases, listing, members
from hermes_rl.store.database.admission import Admission
from hermes_rl.store.database.errors import StoreError
from hermes_rl.store.database.groups import Added, Post, Retention, StoredGroup
from hermes_rl.store.database.intake import Intake
from hermes_rl.store.database.leases import Batch
from hermes_rl.store.database.listing import Metric, Page, Run, Status, Tally, Wanted
from hermes_rl.store.database.members import Environment, Trainer
from hermes_rl.store.database.postgres import ADDRESS, PostgresEngine
from hermes_rl.store.database.rows import read_rows, read_texts
from hermes_rl.store.database.schema import MIGRATIONS, migrate, schema_version
from hermes_rl.store.database.sqlite import SQLiteEngine
from hermes_rl.store.database.steps import Engine

# An environment that was not heard of for so long is waited for by no batch.
SILENCE = 60.0
DISCARD_TOGETHER = 64
INDEX_TOGETHER = 1
INDEX_PAUSE = 1.0
EVERYTHING = Wanted()


@asynccontextmanager
async def open_store(address: str | Path, *, silence: float = SILENCE) -> AsyncIterator["Store"]:
    """The store at a path, or at `postgresql://…`; brought to this version's schema, and closed at the end."""
    async with opened_engine(address) as engine:
        store = Store(engine, silence=silence)
        indexing = asyncio.create_task(store.keep_indexing())
        try:
            yield store
        finally:
            indexing.cancel()
            await asyncio.wait([indexing])
            store.close()


@asynccontextmanager
async def opened_engine(
    address: str | Path, migrations: Sequence[tuple[str, dict[str, str]]] = MIGRATIONS
) -> AsyncIterator[Engine]:
    in_postgres = str(address).startswith(ADDRESS)
    engine: Engine = PostgresEngine(str(address)) if in_postgres else SQLiteEngine(Path(address))
    try:
        # Who only reads never waits for who writes: a migration takes the lock, and is seldom due.
        if await engine.read(partial(schema_version, engine.dialect)) != len(migrations):
            await engine.write(partial(migrate, engine.dialect, migrations))
        yield engine
    finally:
        await engine.close()


class Store:
    """Groups, leases and all that goes with them over one engine. Environments are named by their number here."""

    def __init__(self, engine: Engine, *, silence: float = SILENCE) -> None:
        self._engine = engine
        self._dialect = engine.dialect
        self._silence = silence
        # Reading a large group takes milliseconds that the event loop does not have.
        self._door = ThreadPoolExecutor(1, "hermes-rl-store-door")
        self._adds = partial(groups.add_groups, self._dialect)
        self.intake = Intake()
        self._adding = 0
        self._added = asyncio.Event()

    def close(self) -> None:
        self._door.shutdown(wait=False)

    async def add(self, environment: int, data: bytes) -> Added:
        """Keep a group in its binary form; BadGroupError for what is none. It is on disk when this returns."""
        self._adding += 1
        try:
            row = await asyncio.get_running_loop().run_in_executor(self._door, read_rows, data)
            post = Post(environment, row, data)
            added = await self._engine.share(self._adds, post, order=row.id, size=len(data))
            if added.new:
                self.intake.note(environment, row, len(data))
            return added
        finally:
            self._adding -= 1
            self._added.set()

    async def index_texts(self) -> None:
        """Index all words that wait for it. It goes on by itself, but behind the adds."""
        while await self._index_some():
            pass

    async def _index_some(self) -> bool:
        """Index the words of the oldest groups that wait for it; whether there were any."""
        waiting = await self._engine.read(partial(groups.unindexed, INDEX_TOGETHER))
        for place, data in waiting:
            texts = await asyncio.get_running_loop().run_in_executor(self._door, read_texts, data or b"")
            await self._engine.write(partial(groups.index_texts, self._dialect, place, texts))
        return bool(waiting)

    async def keep_indexing(self) -> None:
        """Index in the pauses between adds, and a little while there is no pause."""
        while True:
            try:
                waiting = await self._index_some()
            except StoreError:
                # Whoever posts is told of it; the words wait in the database.
                waiting = False
            if not waiting:
                await self._added.wait()
            self._added.clear()
            if self._adding:
                await asyncio.sleep(INDEX_PAUSE)

    async def group(self, group: int | str) -> StoredGroup | None:
        """A group by its place or by its id."""
        column = "place" if isinstance(group, int) else "id"
        return await self._engine.read(partial(groups.find_group, column, group))

    async def discard(self, retention: Retention) -> int:
        """Let go of bytes by policy, a few at a time so that nobody waits for it; of how many groups."""
        total = 0
        while count := await self._engine.write(partial(groups.discard, self._dialect, retention, DISCARD_TOGETHER)):
            total += count
        return total

    async def lease(
        self, trainer: str, *, seconds: float, batch_size: int | None = None, request: str | None = None
    ) -> Batch | None:
        """The next batch for so many seconds; None while there is none. The same request is given the same batch."""
        return await self._engine.write(
            partial(leases.lease, self._dialect, trainer, batch_size, seconds, request, self._silence)
        )

    async def extend(self, batch: int, seconds: float) -> float:
        """Hold it until so many seconds from now; LeaseLostError when another has its groups."""
        return await self._engine.write(partial(leases.extend, self._dialect, batch, seconds))

    async def ack(self, *batches: int) -> int:
        """Say that all of them were trained on, or none; how many were not acknowledged before."""
        return await self._engine.write(partial(leases.acknowledge, self._dialect, batches))

    async def release(self, *batches: int) -> int:
        """Give them back, their groups to their old places; how many were still held."""
        return await self._engine.write(partial(leases.release, self._dialect, batches))

    async def drop_all(self, cause: str) -> int:
        """Empty the queue, what is on loan too; how many groups were dropped."""
        return await self._engine.write(partial(leases.drop_all, self._dialect, cause))

    async def batch(self, batch: int) -> Batch | None:
        return await self._engine.read(partial(leases.find_batch, batch))

    async def open_batches(self, trainer: str) -> list[int]:
        """What the trainer has on loan, overdue or not; a resumed one gives back what its checkpoint does not name."""
        return await self._engine.read(partial(leases.open_batches, trainer))

    async def acknowledged(self, trainer: str) -> int:
        """How many batches the trainer acknowledged of those it leased since it registered."""
        return await self._engine.read(partial(leases.count_acknowledged, trainer))

    async def register_environment(
        self,
        name: str,
        *,
        instance: str = "",
        group_size: int | None = None,
        weight: float = 1.0,
        minimum: float = 0.0,
        settings: Mapping[str, Any] | None = None,
    ) -> Environment:
        """Its number, the same as before for the same name and instance, and where it stands in its dataset."""
        return await self._engine.write(
            partial(
                members.register_environment,
                *(self._dialect, name, instance, group_size, weight, minimum, settings or {}),
            )
        )

    async def heartbeat(self, environment: int, *, running: int, cursor: int | None = None) -> None:
        await self._engine.write(partial(members.heartbeat, self._dialect, environment, running, cursor))

    async def admit(
        self, environment: int, *, running: int, wanted: int, limit: int, cursor: int | None = None
    ) -> Admission:
        """Hear what an environment runs, and how much more it may begin; both in rollouts."""
        steps = partial(admission.admit, self._dialect, environment, running, wanted, cursor, limit, self._silence)
        return await self._engine.write(steps)

    async def disconnect(self, environment: int) -> None:
        await self._engine.write(partial(members.disconnect, environment))

    async def environments(self) -> list[Environment]:
        return await self._engine.read(members.environments)

    async def finished_draws(self, environment: int, since: int = 0) -> list[int]:
        return await self._engine.read(partial(members.finished_draws, environment, since))

    async def register_trainer(self, trainer: Trainer) -> None:
        await self._engine.write(partial(members.register_trainer, self._dialect, trainer))

    async def forget_trainer(self, name: str) -> None:
        await self._engine.write(partial(members.forget_trainer, self._dialect, name))

    async def trainer(self) -> Trainer | None:
        """The one that registered last."""
        return await self._engine.read(members.latest_trainer)

    async def set_version(self, version: int, *, by: str) -> bool:
        """Set the policy's version; whether it is new. `by` names one life of one trainer, which may say it again."""
        return await self._engine.write(partial(members.set_version, self._dialect, version, by))

    async def version(self) -> int:
        return await self._engine.read(leases.current_version)

    async def status(self) -> Status:
        return await self._engine.read(partial(listing.status, self._dialect, self._silence))

    async def queued_versions(self) -> dict[int, int]:
        """How many rollouts of the queue have which version for their oldest."""
        return await self._engine.read(listing.queued_versions)

    async def tallies(self) -> list[Tally]:
        """What became of the groups that left the queue, by cause."""
        return await self._engine.read(listing.tallies)

    async def rollouts(self, wanted: Wanted = EVERYTHING, *, before: int | None = None, most: int = 100) -> Page:
        return await self._engine.read(partial(listing.list_rollouts, self._dialect, wanted, before, most))

    async def put_run(self, run: str, *, name: str, state: str, settings: Mapping[str, Any]) -> None:
        await self._engine.write(partial(listing.put_run, self._dialect, run, name, state, settings))

    async def runs(self) -> list[Run]:
        return await self._engine.read(listing.runs)

    async def forget_run(self, run: str) -> None:
        """Delete its row and its metrics; harmless when there is none."""
        await self._engine.write(partial(listing.forget_run, run))

    async def append_metrics(self, run: str, step: int, values: Mapping[str, float]) -> None:
        await self._engine.write(partial(listing.append_metrics, self._dialect, run, step, values))

    async def metrics(self, run: str, *, after: int = 0, most: int = 1_000) -> list[Metric]:
        return await self._engine.read(partial(listing.read_metrics, run, after, most))

"""The durable store: finished groups are stored, leased to trainers in order, and trained on once.

Always true: a call that returned is on disk; a call whose answer was lost can be retried (only metrics would be stored
twice); no state is kept in memory between calls, so all replicas of one database are equal.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hermes_rl.store.database import flow_control, groups, leases, registrations, views
from hermes_rl.store.database.errors import StoreError
from hermes_rl.store.database.flow_control import Admission
from hermes_rl.store.database.groups import AddResult, GroupScores, NewGroup, Retention, StoredGroup
from hermes_rl.store.database.ingest_stats import IngestStats
from hermes_rl.store.database.leases import BatchLease
from hermes_rl.store.database.postgres import URL_PREFIXES, PostgresEngine
from hermes_rl.store.database.registrations import EnvironmentRow, TrainerRow
from hermes_rl.store.database.rows import read_rows, read_texts
from hermes_rl.store.database.schema import MIGRATIONS, migrate, schema_version
from hermes_rl.store.database.sqlite import SQLiteEngine
from hermes_rl.store.database.transactions import DatabaseEngine
from hermes_rl.store.database.views import Metric, OutcomeTally, RolloutPage, RolloutQuery, Run, Status

# Batches do not wait for an environment without a heartbeat for this many seconds.
HEARTBEAT_TIMEOUT = 60.0
DISCARD_BATCH = 64
INDEX_BATCH = 1
INDEX_PAUSE = 1.0
ALL_ROLLOUTS = RolloutQuery()


@asynccontextmanager
async def open_store(address: str | Path, *, heartbeat_timeout: float = HEARTBEAT_TIMEOUT) -> AsyncIterator["Store"]:
    """Open and migrate the store at a path or `postgresql://…`; closed at the end of the block."""
    async with open_engine(address) as engine:
        store = Store(engine, heartbeat_timeout=heartbeat_timeout)
        indexing = asyncio.create_task(store.keep_indexing())
        try:
            yield store
        finally:
            indexing.cancel()
            await asyncio.wait([indexing])
            store.close()


@asynccontextmanager
async def open_engine(
    address: str | Path, migrations: Sequence[tuple[str, dict[str, str]]] = MIGRATIONS
) -> AsyncIterator[DatabaseEngine]:
    is_postgres = str(address).startswith(URL_PREFIXES)
    engine: DatabaseEngine = PostgresEngine(str(address)) if is_postgres else SQLiteEngine(Path(address))
    try:
        # Checked with a read first, which never waits for writers; a migration takes the lock and is rare.
        if await engine.read(partial(schema_version, engine.dialect)) != len(migrations):
            await engine.write(partial(migrate, engine.dialect, migrations))
        yield engine
    finally:
        await engine.close()


class Store:
    """Groups, leases, registrations and metrics over one engine. `environment` is always its number."""

    def __init__(self, engine: DatabaseEngine, *, heartbeat_timeout: float = HEARTBEAT_TIMEOUT) -> None:
        self._engine = engine
        self._dialect = engine.dialect
        self._silence = heartbeat_timeout
        # Decoding a large group takes milliseconds, too long for the event loop.
        self._decoder = ThreadPoolExecutor(1, "hermes-rl-store-decoder")
        self._add_groups = partial(groups.add_groups, self._dialect)
        self.ingest_stats = IngestStats()
        self._adding = 0
        self._added = asyncio.Event()

    def close(self) -> None:
        self._decoder.shutdown(wait=False)

    async def add(self, environment: int, data: bytes) -> AddResult:
        """Add an encoded group; BadGroupError for invalid bytes. It is on disk when this returns."""
        self._adding += 1
        try:
            row = await asyncio.get_running_loop().run_in_executor(self._decoder, read_rows, data)
            post = NewGroup(environment, row, data)
            added = await self._engine.write_shared(self._add_groups, post, sort_key=row.id, size=len(data))
            if added.new:
                self.ingest_stats.record(environment, row, len(data))
            return added
        finally:
            self._adding -= 1
            self._added.set()

    async def index_texts(self) -> None:
        """Index all unindexed texts now. Otherwise this happens in the background, between adds."""
        while await self._index_some():
            pass

    async def _index_some(self) -> bool:
        """Index the oldest unindexed groups; whether there were any."""
        waiting = await self._engine.read(partial(groups.unindexed, INDEX_BATCH))
        for place, data in waiting:
            texts = await asyncio.get_running_loop().run_in_executor(self._decoder, read_texts, data or b"")
            await self._engine.write(partial(groups.index_texts, self._dialect, place, texts))
        return bool(waiting)

    async def keep_indexing(self) -> None:
        """Index in the pauses between adds, and slowly while there is no pause."""
        while True:
            try:
                waiting = await self._index_some()
            except StoreError:
                # Adds report the error; the texts stay unindexed for now.
                waiting = False
            if not waiting:
                await self._added.wait()
            self._added.clear()
            if self._adding:
                await asyncio.sleep(INDEX_PAUSE)

    async def group(self, group: int | str) -> StoredGroup | None:
        """A group by its position or by its id."""
        column = "place" if isinstance(group, int) else "id"
        return await self._engine.read(partial(groups.find_group, column, group))

    async def discard(self, retention: Retention) -> int:
        """Delete bytes by policy, a few groups at a time so that nobody waits; returns the number of groups."""
        total = 0
        while count := await self._engine.write(partial(groups.discard, self._dialect, retention, DISCARD_BATCH)):
            total += count
        return total

    async def lease(
        self, trainer: str, *, seconds: float, batch_size: int | None = None, request: str | None = None
    ) -> BatchLease | None:
        """Lease the next batch; None while there is none. The same request id gets the same batch."""
        return await self._engine.write(
            partial(leases.lease, self._dialect, trainer, batch_size, seconds, request, self._silence)
        )

    async def extend(self, batch: int, seconds: float) -> float:
        """Extend a lease to `seconds` from now; LeaseLostError when its groups are in another batch."""
        return await self._engine.write(partial(leases.extend, self._dialect, batch, seconds))

    async def ack(self, *batches: int) -> int:
        """Mark batches as trained on, all or none; returns how many were not acknowledged before."""
        return await self._engine.write(partial(leases.acknowledge, self._dialect, batches))

    async def release(self, *batches: int) -> int:
        """Return batches to the queue, in their old positions; returns how many were still leased."""
        return await self._engine.write(partial(leases.release, self._dialect, batches))

    async def drop_all(self, cause: str) -> int:
        """Empty the queue, including leased groups; returns how many were dropped."""
        return await self._engine.write(partial(leases.drop_all, self._dialect, cause))

    async def batch(self, batch: int) -> BatchLease | None:
        return await self._engine.read(partial(leases.find_batch, batch))

    async def open_batches(self, trainer: str) -> list[int]:
        """The trainer's leased batches, expired or not; a resumed trainer releases those not in its checkpoint."""
        return await self._engine.read(partial(leases.open_batches, trainer))

    async def acknowledged(self, trainer: str) -> int:
        """How many batches the trainer leased since its registration and acknowledged."""
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
    ) -> EnvironmentRow:
        """Register an environment. The same name and instance keep their number and dataset cursor."""
        return await self._engine.write(
            partial(
                registrations.register_environment,
                *(self._dialect, name, instance, group_size, weight, minimum, settings or {}),
            )
        )

    async def heartbeat(self, environment: int, *, running: int, cursor: int | None = None) -> None:
        await self._engine.write(partial(registrations.heartbeat, self._dialect, environment, running, cursor))

    async def admit(
        self, environment: int, *, running: int, wanted: int, limit: int, cursor: int | None = None
    ) -> Admission:
        """Record a heartbeat, and grant new rollouts."""
        steps = partial(flow_control.admit, self._dialect, environment, running, wanted, cursor, limit, self._silence)
        return await self._engine.write(steps)

    async def disconnect(self, environment: int) -> None:
        await self._engine.write(partial(registrations.disconnect, environment))

    async def environments(self) -> list[EnvironmentRow]:
        return await self._engine.read(registrations.environments)

    async def finished_draws(self, environment: int, since: int = 0) -> list[int]:
        return await self._engine.read(partial(registrations.finished_draws, environment, since))

    async def group_scores(self, environment: int, *, after: int = 0, limit: int = 1_000) -> list[GroupScores]:
        """Scores of the training groups of this environment and its replicas behind a place, in order."""
        return await self._engine.read(partial(groups.group_scores, self._dialect, environment, after, limit))

    async def register_trainer(self, trainer: TrainerRow) -> None:
        await self._engine.write(partial(registrations.register_trainer, self._dialect, trainer))

    async def forget_trainer(self, name: str) -> None:
        await self._engine.write(partial(registrations.forget_trainer, self._dialect, name))

    async def trainer(self) -> TrainerRow | None:
        """The trainer that registered last."""
        return await self._engine.read(registrations.latest_trainer)

    async def set_version(self, version: int, *, by: str) -> bool:
        """Set the policy version; whether it is new. `by` identifies the trainer process, which may repeat the call."""
        return await self._engine.write(partial(registrations.set_version, self._dialect, version, by))

    async def version(self) -> int:
        return await self._engine.read(leases.current_version)

    async def status(self) -> Status:
        return await self._engine.read(partial(views.status, self._dialect, self._silence))

    async def queued_versions(self) -> dict[int, int]:
        """Queued rollouts by the oldest policy version in their group."""
        return await self._engine.read(views.queued_versions)

    async def tallies(self) -> list[OutcomeTally]:
        """Outcomes of the groups that left the queue, by cause."""
        return await self._engine.read(views.tallies)

    async def rollouts(
        self, query: RolloutQuery = ALL_ROLLOUTS, *, before: int | None = None, limit: int = 100
    ) -> RolloutPage:
        return await self._engine.read(partial(views.list_rollouts, self._dialect, query, before, limit))

    async def put_run(self, run: str, *, name: str, state: str, settings: Mapping[str, Any]) -> None:
        await self._engine.write(partial(views.put_run, self._dialect, run, name, state, settings))

    async def runs(self) -> list[Run]:
        return await self._engine.read(views.runs)

    async def forget_run(self, run: str) -> None:
        """Delete a run and its metrics, if it exists."""
        await self._engine.write(partial(views.forget_run, run))

    async def append_metrics(self, run: str, step: int, values: Mapping[str, float]) -> None:
        await self._engine.write(partial(views.append_metrics, self._dialect, run, step, values))

    async def metrics(self, run: str, *, after: int = 0, limit: int = 1_000) -> list[Metric]:
        return await self._engine.read(partial(views.read_metrics, run, after, limit))

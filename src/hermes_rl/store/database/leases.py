"""Leases of batches to trainers, which end when acknowledged, released or expired.

Always true: a group is in at most one open batch, and is acknowledged at most once; a batch that ends unacknowledged
returns its groups to their old positions in the queue. Lease decisions are serialised across all replicas.
"""

from collections.abc import Collection
from dataclasses import dataclass

from hermes_rl.store.database.errors import LeaseLostError, UnknownTrainerError
from hermes_rl.store.database.queue import QueuedGroup, Share, choose_batch
from hermes_rl.store.database.transactions import (
    Row,
    SqlDialect,
    Transaction,
    database_time,
    execute,
    execute_many,
    fetch_one,
    take_lock,
)


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """A group of a batch; its bytes are read separately, by position. `size` counts the rollouts to train on."""

    place: int
    id: str
    environment: int
    size: int
    rollouts: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BatchLease:
    """Groups leased together, in queue order. `version` is the policy version at the time of the lease."""

    id: int
    trainer: str
    version: int
    expires_at: float
    groups: tuple[BatchGroup, ...]

    @property
    def size(self) -> int:
        return sum(group.size for group in self.groups)


def lease(
    dialect: SqlDialect,
    trainer: str,
    batch_size: int | None,
    seconds: float,
    request: str | None,
    heartbeat_timeout: float,
) -> Transaction[BatchLease | None]:
    """The next batch; None while there is none. The same request id gets the same batch."""
    yield from take_lock(dialect)
    timestamp = yield from database_time(dialect)
    settings = yield from fetch_one("SELECT batch_size, max_staleness, needs FROM trainers WHERE name = ?", trainer)
    if settings is None:
        raise UnknownTrainerError(f"no trainer {trainer!r} is registered; register it, then ask for a batch")
    yield from _end_overdue(timestamp)
    if request is not None:
        known = yield from fetch_one("SELECT id, state FROM batches WHERE request = ?", request)
        if known is not None:
            if known[1] != "leased":
                raise LeaseLostError(
                    f"request {request!r} had batch {known[0]}, which is {known[1]}; make a new request"
                )
            return (yield from find_batch(known[0]))
    version = yield from current_version()
    yield from _drop_unfit(timestamp, version, settings[1], settings[2].split())
    wanted = batch_size or settings[0]
    waiting = yield from _waiting(wanted)
    shares, live = yield from _shares(timestamp - heartbeat_timeout)
    chosen = choose_batch(waiting, wanted, shares, live)
    if not chosen:
        return None
    [(batch,)] = yield from execute(
        "INSERT INTO batches (request, trainer, version, state, leased_at, expires_at) "
        "VALUES (?, ?, ?, 'leased', ?, ?) RETURNING id",
        *(request, trainer, version, timestamp, timestamp + seconds),
    )
    members = [(batch, group.place) for group in chosen]
    yield from execute_many("INSERT INTO batch_groups (batch, place) VALUES (?, ?)", members)
    yield from execute_many("UPDATE queue SET batch = ? WHERE place = ?", members)
    return (yield from find_batch(batch))


def extend(dialect: SqlDialect, batch: int, seconds: float) -> Transaction[float]:
    """Extend the lease to `seconds` from now; returns its new expiry."""
    yield from take_lock(dialect)
    expires_at = (yield from database_time(dialect)) + seconds
    if (yield from _hold(batch)) == "acknowledged":
        raise LeaseLostError(f"batch {batch} is acknowledged; there is nothing to extend")
    yield from execute("UPDATE batches SET expires_at = ? WHERE id = ?", expires_at, batch)
    return expires_at


def acknowledge(dialect: SqlDialect, batches: Collection[int]) -> Transaction[int]:
    """Mark batches as trained on, all or none; returns how many were not acknowledged before."""
    yield from take_lock(dialect)
    timestamp = yield from database_time(dialect)
    new = 0
    for batch in sorted(set(batches)):
        if (yield from _hold(batch)) == "acknowledged":
            continue
        rows = yield from execute("DELETE FROM queue WHERE batch = ? RETURNING place, environment, size", batch)
        yield from _record(rows, "trained", "", batch, timestamp)
        yield from _end([batch], "acknowledged", timestamp)
        new += 1
    return new


def release(dialect: SqlDialect, batches: Collection[int]) -> Transaction[int]:
    """Return batches to the queue, in their old positions; returns how many were still leased."""
    yield from take_lock(dialect)
    timestamp = yield from database_time(dialect)
    held = []
    for batch in sorted(set(batches)):
        row = yield from fetch_one("SELECT state FROM batches WHERE id = ?", batch)
        if row == ("leased",):
            held.append(batch)
    yield from _free(held, "released", timestamp)
    return len(held)


def drop_all(dialect: SqlDialect, cause: str) -> Transaction[int]:
    """Empty the queue, including leased groups; returns how many were dropped."""
    yield from take_lock(dialect)
    timestamp = yield from database_time(dialect)
    rows = yield from execute("SELECT id FROM batches WHERE state = 'leased'")
    yield from _free([batch for (batch,) in rows], "released", timestamp)
    dropped = yield from execute("DELETE FROM queue RETURNING place, environment, size")
    yield from _record(dropped, "dropped", cause, None, timestamp)
    return len(dropped)


def open_batches(trainer: str) -> Transaction[list[int]]:
    rows = yield from execute("SELECT id FROM batches WHERE trainer = ? AND state = 'leased' ORDER BY id", trainer)
    return [batch for (batch,) in rows]


def count_acknowledged(trainer: str) -> Transaction[int]:
    """How many batches the trainer leased since its registration and acknowledged."""
    [(count,)] = yield from execute(
        "SELECT COUNT(*) FROM batches b JOIN trainers t ON t.name = b.trainer "
        "WHERE t.name = ? AND b.state = 'acknowledged' AND b.leased_at >= t.registered_at",
        trainer,
    )
    return int(count)


def find_batch(batch: int) -> Transaction[BatchLease | None]:
    head = yield from fetch_one("SELECT id, trainer, version, expires_at FROM batches WHERE id = ?", batch)
    if head is None:
        return None
    rows = yield from execute(
        "SELECT g.place, g.id, g.environment, g.size, g.rollouts, g.bytes "
        "FROM batch_groups b JOIN groups g ON g.place = b.place WHERE b.batch = ? ORDER BY g.place",
        batch,
    )
    number, trainer, version, expires_at = head
    return BatchLease(number, trainer, version, expires_at, tuple(BatchGroup(*row) for row in rows))


def current_version() -> Transaction[int]:
    [(version,)] = yield from execute("SELECT COALESCE(MAX(version), 0) FROM versions")
    return int(version)


def _waiting(batch_size: int) -> Transaction[list[QueuedGroup]]:
    # The queue may be long: read only as much of each environment as one batch could take.
    rows = yield from execute(
        "SELECT place, environment, size FROM (SELECT place, environment, size, "
        "SUM(size) OVER (PARTITION BY environment ORDER BY place) - size AS before FROM queue WHERE batch IS NULL) q "
        "WHERE before < ? ORDER BY place",
        batch_size,
    )
    return [QueuedGroup(*row) for row in rows]


def _shares(silent_since: float) -> Transaction[tuple[dict[int, Share], set[int]]]:
    rows = yield from execute(
        "SELECT id, weight, minimum, connected, seen_at FROM environments WHERE minimum > 0 OR weight <> 1"
    )
    shares = {name: Share(weight, minimum) for name, weight, minimum, _, _ in rows}
    return shares, {name for name, _, _, connected, seen_at in rows if connected and seen_at >= silent_since}


def _drop_unfit(timestamp: float, version: int, max_staleness: int | None, needs: list[str]) -> Transaction[None]:
    delete = "DELETE FROM queue WHERE batch IS NULL AND {} RETURNING place, environment, size"
    for need in needs:
        rows = yield from execute(delete.format("lacks LIKE ?"), f"%{need}%")
        yield from _record(rows, "dropped", f"no_{need}", None, timestamp)
    if max_staleness is not None:
        rows = yield from execute(delete.format("oldest_version < ?"), version - max_staleness)
        yield from _record(rows, "dropped", "stale", None, timestamp)


def _hold(batch: int) -> Transaction[str]:
    """The state of the batch; an expired lease is renewed if none of its groups was leased again."""
    row = yield from fetch_one("SELECT state FROM batches WHERE id = ?", batch)
    if row is None:
        raise LeaseLostError(f"there is no batch {batch}")
    state = str(row[0])
    if state == "released":
        raise LeaseLostError(f"batch {batch} was released")
    if state == "lapsed":
        [(members, free)] = yield from execute(
            "SELECT COUNT(*), COUNT(CASE WHEN q.place IS NOT NULL AND q.batch IS NULL THEN 1 END) "
            "FROM batch_groups b LEFT JOIN queue q ON q.place = b.place WHERE b.batch = ?",
            batch,
        )
        if free < members:
            raise LeaseLostError(
                f"the lease of batch {batch} expired, and {members - free} of its {members} groups were leased again; "
                "roll back what was learned from it, and extend leases in time"
            )
        yield from execute(
            "UPDATE queue SET batch = ? WHERE place IN (SELECT place FROM batch_groups WHERE batch = ?)", batch, batch
        )
        yield from execute("UPDATE batches SET state = 'leased', ended_at = NULL WHERE id = ?", batch)
        state = "leased"
    return state


def _end_overdue(timestamp: float) -> Transaction[None]:
    rows = yield from execute("SELECT id FROM batches WHERE state = 'leased' AND expires_at <= ?", timestamp)
    yield from _free([batch for (batch,) in rows], "lapsed", timestamp)


def _free(batches: list[int], state: str, timestamp: float) -> Transaction[None]:
    yield from execute_many("UPDATE queue SET batch = NULL WHERE batch = ?", ((batch,) for batch in batches))
    yield from _end(batches, state, timestamp)


def _end(batches: list[int], state: str, timestamp: float) -> Transaction[None]:
    yield from execute_many(
        "UPDATE batches SET state = ?, ended_at = ? WHERE id = ?", ((state, timestamp, batch) for batch in batches)
    )


def _record(rows: list[Row], outcome: str, cause: str, batch: int | None, timestamp: float) -> Transaction[None]:
    yield from execute_many(
        "INSERT INTO outcomes (place, environment, size, outcome, cause, batch, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        ((*row, outcome, cause, batch, timestamp) for row in rows),
    )

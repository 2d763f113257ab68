"""Batches on loan to trainers, until they are acknowledged, given back or overdue.

Always true: a group is in at most one open batch, and is acknowledged at most once; a batch that ends without an
acknowledgement leaves its groups in their old places. One transaction at a time decides, over all replicas.
"""

from collections.abc import Collection
from dataclasses import dataclass

from hermes_rl.store.database.errors import LeaseLostError, UnknownTrainerError
from hermes_rl.store.database.queue import Share, Waiting, choose
from hermes_rl.store.database.steps import Dialect, Row, Steps, ask, each, lock, now, one


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """A group of a batch; its bytes are read one at a time, by place. `size` counts the rollouts to train on."""

    place: int
    id: str
    environment: int
    size: int
    rollouts: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups leased together, in their order. `version` was the policy's when they were leased."""

    id: int
    trainer: str
    version: int
    expires_at: float
    groups: tuple[BatchGroup, ...]

    @property
    def size(self) -> int:
        return sum(group.size for group in self.groups)


def lease(
    dialect: Dialect, trainer: str, batch_size: int | None, seconds: float, request: str | None, silence: float
) -> Steps[Batch | None]:
    """The next batch; None while there is none. The same request is given the same batch."""
    yield from lock(dialect)
    moment = yield from now(dialect)
    settings = yield from one("SELECT batch_size, max_staleness, needs FROM trainers WHERE name = ?", trainer)
    if settings is None:
        raise UnknownTrainerError(f"no trainer {trainer!r} is registered; register it, then ask for a batch")
    yield from _end_overdue(moment)
    if request is not None:
        known = yield from one("SELECT id, state FROM batches WHERE request = ?", request)
        if known is not None:
            if known[1] != "leased":
                raise LeaseLostError(
                    f"request {request!r} had batch {known[0]}, which is {known[1]}; make a new request"
                )
            return (yield from find_batch(known[0]))
    version = yield from current_version()
    yield from _drop_unfit(moment, version, settings[1], settings[2].split())
    wanted = batch_size or settings[0]
    waiting = yield from _waiting(wanted)
    shares, live = yield from _shares(moment - silence)
    chosen = choose(waiting, wanted, shares, live)
    if not chosen:
        return None
    [(batch,)] = yield from ask(
        "INSERT INTO batches (request, trainer, version, state, leased_at, expires_at) "
        "VALUES (?, ?, ?, 'leased', ?, ?) RETURNING id",
        *(request, trainer, version, moment, moment + seconds),
    )
    members = [(batch, group.place) for group in chosen]
    yield from each("INSERT INTO batch_groups (batch, place) VALUES (?, ?)", members)
    yield from each("UPDATE queue SET batch = ? WHERE place = ?", members)
    return (yield from find_batch(batch))


def extend(dialect: Dialect, batch: int, seconds: float) -> Steps[float]:
    """Hold the batch until so many seconds from now; when that will be."""
    yield from lock(dialect)
    expires_at = (yield from now(dialect)) + seconds
    if (yield from _hold(batch)) == "acknowledged":
        raise LeaseLostError(f"batch {batch} is acknowledged; there is nothing to extend")
    yield from ask("UPDATE batches SET expires_at = ? WHERE id = ?", expires_at, batch)
    return expires_at


def acknowledge(dialect: Dialect, batches: Collection[int]) -> Steps[int]:
    """Say that they were trained on, all or none of them; how many were not acknowledged before."""
    yield from lock(dialect)
    moment = yield from now(dialect)
    new = 0
    for batch in sorted(set(batches)):
        if (yield from _hold(batch)) == "acknowledged":
            continue
        rows = yield from ask("DELETE FROM queue WHERE batch = ? RETURNING place, environment, size", batch)
        yield from _record(rows, "trained", "", batch, moment)
        yield from _end([batch], "acknowledged", moment)
        new += 1
    return new


def release(dialect: Dialect, batches: Collection[int]) -> Steps[int]:
    """Give them back, their groups in their old places; how many were still held."""
    yield from lock(dialect)
    moment = yield from now(dialect)
    held = []
    for batch in sorted(set(batches)):
        row = yield from one("SELECT state FROM batches WHERE id = ?", batch)
        if row == ("leased",):
            held.append(batch)
    yield from _free(held, "released", moment)
    return len(held)


def drop_all(dialect: Dialect, cause: str) -> Steps[int]:
    """Empty the queue, what is on loan too; how many groups were dropped."""
    yield from lock(dialect)
    moment = yield from now(dialect)
    rows = yield from ask("SELECT id FROM batches WHERE state = 'leased'")
    yield from _free([batch for (batch,) in rows], "released", moment)
    dropped = yield from ask("DELETE FROM queue RETURNING place, environment, size")
    yield from _record(dropped, "dropped", cause, None, moment)
    return len(dropped)


def open_batches(trainer: str) -> Steps[list[int]]:
    rows = yield from ask("SELECT id FROM batches WHERE trainer = ? AND state = 'leased' ORDER BY id", trainer)
    return [batch for (batch,) in rows]


def count_acknowledged(trainer: str) -> Steps[int]:
    """How many of the batches that were leased since the trainer registered it trained on."""
    [(count,)] = yield from ask(
        "SELECT COUNT(*) FROM batches b JOIN trainers t ON t.name = b.trainer "
        "WHERE t.name = ? AND b.state = 'acknowledged' AND b.leased_at >= t.registered_at",
        trainer,
    )
    return int(count)


def find_batch(batch: int) -> Steps[Batch | None]:
    head = yield from one("SELECT id, trainer, version, expires_at FROM batches WHERE id = ?", batch)
    if head is None:
        return None
    rows = yield from ask(
        "SELECT g.place, g.id, g.environment, g.size, g.rollouts, g.bytes "
        "FROM batch_groups b JOIN groups g ON g.place = b.place WHERE b.batch = ? ORDER BY g.place",
        batch,
    )
    number, trainer, version, expires_at = head
    return Batch(number, trainer, version, expires_at, tuple(BatchGroup(*row) for row in rows))


def current_version() -> Steps[int]:
    [(version,)] = yield from ask("SELECT COALESCE(MAX(version), 0) FROM versions")
    return int(version)


def _waiting(batch_size: int) -> Steps[list[Waiting]]:
    # Of each environment only as much as could be chosen: the queue may be long.
    rows = yield from ask(
        "SELECT place, environment, size FROM (SELECT place, environment, size, "
        "SUM(size) OVER (PARTITION BY environment ORDER BY place) - size AS before FROM queue WHERE batch IS NULL) q "
        "WHERE before < ? ORDER BY place",
        batch_size,
    )
    return [Waiting(*row) for row in rows]


def _shares(silent_since: float) -> Steps[tuple[dict[int, Share], set[int]]]:
    rows = yield from ask(
        "SELECT id, weight, minimum, connected, seen_at FROM environments WHERE minimum > 0 OR weight <> 1"
    )
    shares = {name: Share(weight, minimum) for name, weight, minimum, _, _ in rows}
    return shares, {name for name, _, _, connected, seen_at in rows if connected and seen_at >= silent_since}


def _drop_unfit(moment: float, version: int, max_staleness: int | None, needs: list[str]) -> Steps[None]:
    gone = "DELETE FROM queue WHERE batch IS NULL AND {} RETURNING place, environment, size"
    for need in needs:
        rows = yield from ask(gone.format("lacks LIKE ?"), f"%{need}%")
        yield from _record(rows, "dropped", f"no_{need}", None, moment)
    if max_staleness is not None:
        rows = yield from ask(gone.format("oldest_version < ?"), version - max_staleness)
        yield from _record(rows, "dropped", "stale", None, moment)


def _hold(batch: int) -> Steps[str]:
    """The batch's state, which is `leased` again when it lapsed and nobody took any of its groups."""
    row = yield from one("SELECT state FROM batches WHERE id = ?", batch)
    if row is None:
        raise LeaseLostError(f"there is no batch {batch}")
    state = str(row[0])
    if state == "released":
        raise LeaseLostError(f"batch {batch} was given back")
    if state == "lapsed":
        [(members, free)] = yield from ask(
            "SELECT COUNT(*), COUNT(CASE WHEN q.place IS NOT NULL AND q.batch IS NULL THEN 1 END) "
            "FROM batch_groups b LEFT JOIN queue q ON q.place = b.place WHERE b.batch = ?",
            batch,
        )
        if free < members:
            raise LeaseLostError(
                f"batch {batch} lapsed, and {members - free} of its {members} groups went elsewhere; "
                "roll back what was learned from it, and extend leases in time"
            )
        yield from ask(
            "UPDATE queue SET batch = ? WHERE place IN (SELECT place FROM batch_groups WHERE batch = ?)", batch, batch
        )
        yield from ask("UPDATE batches SET state = 'leased', ended_at = NULL WHERE id = ?", batch)
        state = "leased"
    return state


def _end_overdue(moment: float) -> Steps[None]:
    rows = yield from ask("SELECT id FROM batches WHERE state = 'leased' AND expires_at <= ?", moment)
    yield from _free([batch for (batch,) in rows], "lapsed", moment)


def _free(batches: list[int], state: str, moment: float) -> Steps[None]:
    yield from each("UPDATE queue SET batch = NULL WHERE batch = ?", ((batch,) for batch in batches))
    yield from _end(batches, state, moment)


def _end(batches: list[int], state: str, moment: float) -> Steps[None]:
    yield from each(
        "UPDATE batches SET state = ?, ended_at = ? WHERE id = ?", ((state, moment, batch) for batch in batches)
    )


def _record(rows: list[Row], outcome: str, cause: str, batch: int | None, moment: float) -> Steps[None]:
    yield from each(
        "INSERT INTO outcomes (place, environment, size, outcome, cause, batch, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        ((*row, outcome, cause, batch, moment) for row in rows),
    )

"""Read views of the store: pages of rollouts, queue status, outcomes, runs and metrics.

Always true: pages use a cursor (keyset pagination), so their cost does not grow with the offset.
"""

# Values are passed as parameters; only our own column names and expressions are formatted into SQL.
# ruff: noqa: S608

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.store.database.groups import ROLLOUT_COLUMNS
from hermes_rl.store.database.leases import current_version
from hermes_rl.store.database.queue import accepted, capacity
from hermes_rl.store.database.registrations import TrainerRow, latest_trainer
from hermes_rl.store.database.rows import RolloutRow, sanitize_text
from hermes_rl.store.database.transactions import SqlDialect, Transaction, database_time, execute, execute_many


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Filters for listing rollouts; None for any. `text` holds words that must all be in the conversation."""

    environment: int | None = None
    place: int | None = None
    item_id: str | None = None
    stop_reason: str | None = None
    failure: str | None = None
    seat: str | None = None
    lowest_score: float | None = None
    highest_score: float | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ListedRollout:
    """A rollout with the outcome of its group, which is None while it is in the queue."""

    id: int
    place: int
    environment: int
    outcome: str | None
    outcome_cause: str | None
    rollout: RolloutRow


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """Rollouts, newest first. `end` is the cursor of the next page; None on the last."""

    rollouts: tuple[ListedRollout, ...]
    end: int | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """Queue contents of one environment or of all. Leased groups are not waiting."""

    waiting_groups: int = 0
    waiting: int = 0
    leased_groups: int = 0
    leased: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot of the queue, in rollouts. `capacity` is None without a trainer that sets max_staleness."""

    version: int
    backlog: Mapping[int, Backlog]
    running: Mapping[int, int]
    capacity: int | None
    trainer: TrainerRow | None
    """The trainer that registered last."""
    wanted: Mapping[int, int] = field(default_factory=dict)
    """Requests of environments that were not granted."""
    steps: int = 0
    """Batches that the trainer acknowledged. A batch may leave the version as it is."""
    needed: int | None = None
    """Rollouts that its remaining steps need beyond those waiting, leased and running; None if it names no total."""

    @property
    def total(self) -> Backlog:
        parts = self.backlog.values()
        return Backlog(
            sum(part.waiting_groups for part in parts),
            sum(part.waiting for part in parts),
            sum(part.leased_groups for part in parts),
            sum(part.leased for part in parts),
        )


@dataclass(frozen=True, slots=True)
class OutcomeTally:
    """Groups and rollouts of one environment with one outcome and cause."""

    environment: int
    outcome: str
    cause: str
    groups: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class Run:
    id: str
    name: str
    state: str
    settings: Mapping[str, Any]
    started_at: float
    changed_at: float


@dataclass(frozen=True, slots=True)
class Metric:
    id: int
    step: int
    name: str
    value: float
    at: float


def list_rollouts(dialect: SqlDialect, query: RolloutQuery, before: int | None, limit: int) -> Transaction[RolloutPage]:
    text = sanitize_text(query.text or "")
    conditions = {
        "r.environment = ?": query.environment,
        "r.place = ?": query.place,
        "r.item_id = ?": query.item_id,
        "r.stop_reason = ?": query.stop_reason,
        "r.failure = ?": query.failure,
        "r.seat = ?": query.seat,
        "r.score >= ?": query.lowest_score,
        "r.score <= ?": query.highest_score,
        "r.id < ?": before,
        dialect.text_matches: dialect.text_query(text) if text.strip() else None,
    }
    filters = {sql: value for sql, value in conditions.items() if value is not None}
    columns = ", ".join(f"r.{name}" for name in ROLLOUT_COLUMNS.split(", "))
    rows = yield from execute(
        f"SELECT r.id, r.place, r.environment, o.outcome, o.cause, {columns} "
        "FROM rollouts r LEFT JOIN outcomes o ON o.place = r.place "
        f"WHERE {' AND '.join(filters) or '1 = 1'} ORDER BY r.id DESC LIMIT ?",
        *filters.values(),
        limit + 1,
    )
    listed = tuple(_listed_rollout(*row) for row in rows[:limit])
    return RolloutPage(listed, listed[-1].id if len(rows) > limit else None)


def status(dialect: SqlDialect, heartbeat_timeout: float) -> Transaction[Status]:
    timestamp = yield from database_time(dialect)
    version = yield from current_version()
    rows = yield from execute(
        "SELECT q.environment, COUNT(*), SUM(q.size), COUNT(b.id), "
        "SUM(CASE WHEN b.id IS NULL THEN 0 ELSE q.size END), SUM(CASE WHEN b.version = ? THEN q.size ELSE 0 END) "
        "FROM queue q LEFT JOIN batches b ON b.id = q.batch AND b.expires_at > ? GROUP BY q.environment",
        version,
        timestamp,
    )
    backlog: dict[int, Backlog] = {}
    in_training = 0
    for environment, *sums in rows:
        groups, size, leased_groups, leased, now_trained = map(int, sums)
        backlog[environment] = Backlog(groups - leased_groups, size - leased, leased_groups, leased)
        in_training += now_trained
    rows = yield from execute(
        "SELECT id, running, wanted FROM environments "
        "WHERE connected = 1 AND (running > 0 OR wanted > 0) AND seen_at >= ?",
        timestamp - heartbeat_timeout,
    )
    running = {environment: int(count) for environment, count, _ in rows if count}
    wanted = {environment: int(count) for environment, _, count in rows if count}
    trainer = yield from latest_trainer()
    steps = 0
    if trainer is not None:
        [(steps,)] = yield from execute(
            "SELECT COUNT(*) FROM batches WHERE trainer = ? AND state = 'acknowledged'", trainer.name
        )
    left = None
    if trainer is not None and trainer.max_staleness is not None:
        waiting = sum(part.waiting for part in backlog.values())
        left = capacity(
            max_staleness=trainer.max_staleness,
            version=version,
            batch_size=trainer.batch_size,
            # A batch leased for an earlier version was trained on already; only its acknowledgement is missing.
            accepted=accepted(version=version, batch_size=trainer.batch_size, waiting=waiting, in_training=in_training),
            running=sum(running.values()),
        )
    needed = None
    if trainer is not None and isinstance(total_steps := trainer.settings.get("total_steps"), int):
        held = sum(part.waiting + part.leased for part in backlog.values()) + sum(running.values())
        needed = max(0, (total_steps - int(steps)) * trainer.batch_size - held)
    return Status(version, backlog, running, left, trainer, wanted, int(steps), needed)


def queued_versions() -> Transaction[dict[int, int]]:
    """Queued rollouts by the oldest policy version in their group."""
    rows = yield from execute(
        "SELECT oldest_version, SUM(size) FROM queue WHERE oldest_version IS NOT NULL GROUP BY oldest_version"
    )
    return {int(version): int(size) for version, size in rows}


def tallies() -> Transaction[list[OutcomeTally]]:
    rows = yield from execute(
        "SELECT environment, outcome, cause, COUNT(*), SUM(size) FROM outcomes "
        "GROUP BY environment, outcome, cause ORDER BY environment, outcome, cause"
    )
    return [OutcomeTally(number, outcome, cause, count, int(size)) for number, outcome, cause, count, size in rows]


def put_run(dialect: SqlDialect, run: str, name: str, state: str, settings: Mapping[str, Any]) -> Transaction[None]:
    timestamp = yield from database_time(dialect)
    yield from execute(
        "INSERT INTO runs (id, name, state, settings, started_at, changed_at) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET name = excluded.name, state = excluded.state, settings = excluded.settings, "
        "changed_at = excluded.changed_at",
        *map(sanitize_text, (run, name, state, fast_json.dumps(settings).decode())),
        *(timestamp, timestamp),
    )


def runs() -> Transaction[list[Run]]:
    rows = yield from execute(
        "SELECT id, name, state, settings, started_at, changed_at FROM runs ORDER BY started_at, id"
    )
    return [
        Run(run, name, state, fast_json.loads(settings), started_at, changed_at)
        for run, name, state, settings, started_at, changed_at in rows
    ]


def forget_run(run: str) -> Transaction[None]:
    yield from execute("DELETE FROM metrics WHERE run = ?", run)
    yield from execute("DELETE FROM runs WHERE id = ?", run)


def append_metrics(dialect: SqlDialect, run: str, step: int, values: Mapping[str, float]) -> Transaction[None]:
    timestamp = yield from database_time(dialect)
    yield from execute_many(
        "INSERT INTO metrics (run, step, name, value, at) VALUES (?, ?, ?, ?, ?)",
        ((sanitize_text(run), step, sanitize_text(name), float(value), timestamp) for name, value in values.items()),
    )


def read_metrics(run: str, after: int, limit: int) -> Transaction[list[Metric]]:
    rows = yield from execute(
        "SELECT id, step, name, value, at FROM metrics WHERE run = ? AND id > ? ORDER BY id LIMIT ?", run, after, limit
    )
    # SQLite has no NaN and stores NULL for it.
    return [
        Metric(number, step, name, math.nan if value is None else value, at) for number, step, name, value, at in rows
    ]


def _listed_rollout(
    number: int, place: int, environment: int, outcome: str | None, cause: str | None, *rollout: Any
) -> ListedRollout:
    return ListedRollout(number, place, environment, outcome, cause, RolloutRow(*rollout))

"""What a person or a program looks at: rollouts by page, what waits and where, what became of it, runs and metrics.

Always true: a page is found by where the last one ended, so its cost does not grow with what lies before it.
"""

# Values travel apart from the SQL: only columns and expressions of our own are written into it.
# ruff: noqa: S608

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_rl import jsontext
from hermes_rl.store.database.groups import ROLLOUT_COLUMNS
from hermes_rl.store.database.leases import current_version
from hermes_rl.store.database.members import Trainer, latest_trainer
from hermes_rl.store.database.queue import accepted, capacity
from hermes_rl.store.database.rows import RolloutRow, plain
from hermes_rl.store.database.steps import Dialect, Steps, ask, each, now


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rollouts to list; None for any. `text` are words that all stand in the conversation."""

    environment: int | None = None
    place: int | None = None
    item_id: str | None = None
    stop_reason: str | None = None
    failure: str | None = None
    lowest_score: float | None = None
    highest_score: float | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A rollout with where it is: `outcome` is None while its group is in the queue."""

    id: int
    place: int
    environment: int
    outcome: str | None
    outcome_cause: str | None
    rollout: RolloutRow


@dataclass(frozen=True, slots=True)
class Page:
    """Rollouts, the newest first. `end` asks for the next page, and is None on the last."""

    rollouts: tuple[Listed, ...]
    end: int | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is in the queue, of one environment or of all. Groups on loan are not waiting."""

    waiting_groups: int = 0
    waiting: int = 0
    leased_groups: int = 0
    leased: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """The queue at one moment, in rollouts. `capacity` is None while no trainer says how stale is too stale."""

    version: int
    backlog: Mapping[int, Backlog]
    running: Mapping[int, int]
    capacity: int | None
    trainer: Trainer | None
    """The one that registered last."""
    wanted: Mapping[int, int] = field(default_factory=dict)
    """What environments asked for and were not granted."""

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
class Tally:
    """How many groups and rollouts of an environment came to an outcome, by cause."""

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


def list_rollouts(dialect: Dialect, wanted: Wanted, before: int | None, most: int) -> Steps[Page]:
    conditions = {
        "r.environment = ?": wanted.environment,
        "r.place = ?": wanted.place,
        "r.item_id = ?": wanted.item_id,
        "r.stop_reason = ?": wanted.stop_reason,
        "r.failure = ?": wanted.failure,
        "r.score >= ?": wanted.lowest_score,
        "r.score <= ?": wanted.highest_score,
        "r.id < ?": before,
        dialect.text_matches: dialect.text_query(plain(wanted.text)) if wanted.text and wanted.text.strip() else None,
    }
    set_ones = {sql: value for sql, value in conditions.items() if value is not None}
    columns = ", ".join(f"r.{name}" for name in ROLLOUT_COLUMNS.split(", "))
    rows = yield from ask(
        f"SELECT r.id, r.place, r.environment, o.outcome, o.cause, {columns} "
        "FROM rollouts r LEFT JOIN outcomes o ON o.place = r.place "
        f"WHERE {' AND '.join(set_ones) or '1 = 1'} ORDER BY r.id DESC LIMIT ?",
        *set_ones.values(),
        most + 1,
    )
    listed = tuple(_listed(*row) for row in rows[:most])
    return Page(listed, listed[-1].id if len(rows) > most else None)


def status(dialect: Dialect, silence: float) -> Steps[Status]:
    moment = yield from now(dialect)
    version = yield from current_version()
    rows = yield from ask(
        "SELECT q.environment, COUNT(*), SUM(q.size), COUNT(b.id), "
        "SUM(CASE WHEN b.id IS NULL THEN 0 ELSE q.size END), SUM(CASE WHEN b.version = ? THEN q.size ELSE 0 END) "
        "FROM queue q LEFT JOIN batches b ON b.id = q.batch AND b.expires_at > ? GROUP BY q.environment",
        version,
        moment,
    )
    backlog: dict[int, Backlog] = {}
    in_training = 0
    for environment, *sums in rows:
        groups, size, leased_groups, leased, now_trained = map(int, sums)
        backlog[environment] = Backlog(groups - leased_groups, size - leased, leased_groups, leased)
        in_training += now_trained
    rows = yield from ask(
        "SELECT id, running, wanted FROM environments "
        "WHERE connected = 1 AND (running > 0 OR wanted > 0) AND seen_at >= ?",
        moment - silence,
    )
    running = {environment: int(count) for environment, count, _ in rows if count}
    wanted = {environment: int(count) for environment, _, count in rows if count}
    trainer = yield from latest_trainer()
    left = None
    if trainer is not None and trainer.max_staleness is not None:
        waiting = sum(part.waiting for part in backlog.values())
        left = capacity(
            max_staleness=trainer.max_staleness,
            version=version,
            batch_size=trainer.batch_size,
            # A batch that was leased for an earlier version was trained on, and is only not acknowledged yet.
            accepted=accepted(version=version, batch_size=trainer.batch_size, waiting=waiting, in_training=in_training),
            running=sum(running.values()),
        )
    return Status(version, backlog, running, left, trainer, wanted)


def queued_versions() -> Steps[dict[int, int]]:
    """How many rollouts of the queue have which version for their oldest."""
    rows = yield from ask(
        "SELECT oldest_version, SUM(size) FROM queue WHERE oldest_version IS NOT NULL GROUP BY oldest_version"
    )
    return {int(version): int(size) for version, size in rows}


def tallies() -> Steps[list[Tally]]:
    rows = yield from ask(
        "SELECT environment, outcome, cause, COUNT(*), SUM(size) FROM outcomes "
        "GROUP BY environment, outcome, cause ORDER BY environment, outcome, cause"
    )
    return [Tally(number, outcome, cause, count, int(size)) for number, outcome, cause, count, size in rows]


def put_run(dialect: Dialect, run: str, name: str, state: str, settings: Mapping[str, Any]) -> Steps[None]:
    moment = yield from now(dialect)
    yield from ask(
        "INSERT INTO runs (id, name, state, settings, started_at, changed_at) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET name = excluded.name, state = excluded.state, settings = excluded.settings, "
        "changed_at = excluded.changed_at",
        *(plain(run), plain(name), plain(state), plain(jsontext.dumps(settings).decode()), moment, moment),
    )


def runs() -> Steps[list[Run]]:
    rows = yield from ask("SELECT id, name, state, settings, started_at, changed_at FROM runs ORDER BY started_at, id")
    return [
        Run(run, name, state, jsontext.loads(settings), started_at, changed_at)
        for run, name, state, settings, started_at, changed_at in rows
    ]


def forget_run(run: str) -> Steps[None]:
    yield from ask("DELETE FROM metrics WHERE run = ?", run)
    yield from ask("DELETE FROM runs WHERE id = ?", run)


def append_metrics(dialect: Dialect, run: str, step: int, values: Mapping[str, float]) -> Steps[None]:
    moment = yield from now(dialect)
    yield from each(
        "INSERT INTO metrics (run, step, name, value, at) VALUES (?, ?, ?, ?, ?)",
        ((plain(run), step, plain(name), float(value), moment) for name, value in values.items()),
    )


def read_metrics(run: str, after: int, most: int) -> Steps[list[Metric]]:
    rows = yield from ask(
        "SELECT id, step, name, value, at FROM metrics WHERE run = ? AND id > ? ORDER BY id LIMIT ?", run, after, most
    )
    # SQLite has no NaN and keeps NULL for it.
    return [
        Metric(number, step, name, math.nan if value is None else value, at) for number, step, name, value, at in rows
    ]


def _listed(number: int, place: int, environment: int, outcome: str | None, cause: str | None, *rollout: Any) -> Listed:
    return Listed(number, place, environment, outcome, cause, RolloutRow(*rollout))

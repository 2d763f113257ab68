"""Registered environments with their dataset cursors, trainers, and policy versions.

Always true: an environment keeps its number when it registers again; its cursor never goes back; policy versions only
increase, and only the trainer that set a version may set it again.
"""

# Values are passed as parameters; only our own column names and expressions are formatted into SQL.
# ruff: noqa: S608

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.store.database.errors import UnknownEnvironmentError, VersionUsedError
from hermes_rl.store.database.rows import sanitize_text
from hermes_rl.store.database.transactions import (
    Row,
    SqlDialect,
    Transaction,
    database_time,
    execute,
    fetch_one,
    take_lock,
)

NEEDS = ("logprobs", "versions", "one_sequence")
ENVIRONMENT_COLUMNS = (
    "id, name, instance, group_size, weight, minimum, settings, seen_at, connected, running, cursor_draw"
)


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    """A registered environment. `instance` distinguishes replicas of one name; `cursor` is the next draw.

    `minimum` is a fraction of each batch, 0 to 1. `running` is in rollouts, as last reported.
    """

    id: int
    name: str
    instance: str
    group_size: int | None
    weight: float
    minimum: float
    settings: Mapping[str, Any]
    seen_at: float
    connected: bool
    running: int
    cursor: int | None


@dataclass(frozen=True, slots=True)
class TrainerRow:
    """A registered trainer. `needs` lists what it requires of a group (see NEEDS); `max_staleness` is in versions."""

    name: str
    batch_size: int
    max_staleness: int | None = None
    needs: tuple[str, ...] = ("logprobs", "versions")
    settings: Mapping[str, Any] = field(default_factory=dict)


def register_environment(
    dialect: SqlDialect,
    name: str,
    instance: str,
    group_size: int | None,
    weight: float,
    minimum: float,
    settings: Mapping[str, Any],
) -> Transaction[EnvironmentRow]:
    if not 0 <= minimum <= 1:
        raise ConfigError(f"an environment's minimum must be a fraction of the batch from 0 to 1, not {minimum}")
    if not 0 <= weight < float("inf"):
        raise ConfigError(f"an environment's weight must be a finite number of at least 0, not {weight}")
    timestamp = yield from database_time(dialect)
    [row] = yield from execute(
        "INSERT INTO environments (name, instance, group_size, weight, minimum, settings, registered_at, seen_at, "
        "connected, running) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, 0) ON CONFLICT (name, instance) DO UPDATE SET "
        "group_size = excluded.group_size, weight = excluded.weight, minimum = excluded.minimum, "
        "settings = excluded.settings, registered_at = excluded.registered_at, seen_at = excluded.seen_at, "
        f"connected = 1, running = 0, wanted = 0 RETURNING {ENVIRONMENT_COLUMNS}",
        *(
            sanitize_text(name),
            sanitize_text(instance),
            group_size,
            weight,
            minimum,
            _json(settings),
            timestamp,
            timestamp,
        ),
    )
    return environment_from_row(row)


def heartbeat(dialect: SqlDialect, environment: int, running: int, cursor: int | None) -> Transaction[None]:
    """Record that the environment is alive and what it runs; the cursor only moves forward."""
    row = yield from fetch_one(
        f"UPDATE environments SET seen_at = {dialect.now}, connected = 1, running = ?, cursor_draw = "
        "CASE WHEN cursor_draw IS NULL OR cursor_draw < ? THEN ? ELSE cursor_draw END WHERE id = ? RETURNING id",
        *(running, -1 if cursor is None else cursor, cursor, environment),
    )
    if row is None:
        raise UnknownEnvironmentError(f"no environment {environment} is registered; register it again")


def disconnect(environment: int) -> Transaction[None]:
    yield from execute("UPDATE environments SET connected = 0, running = 0, wanted = 0 WHERE id = ?", environment)


def environments() -> Transaction[list[EnvironmentRow]]:
    rows = yield from execute(f"SELECT {ENVIRONMENT_COLUMNS} FROM environments ORDER BY id")
    return [environment_from_row(row) for row in rows]


def finished_draws(environment: int, since: int) -> Transaction[list[int]]:
    """The draws from `since` on with groups in the store, to skip on resume."""
    rows = yield from execute(
        "SELECT DISTINCT draw FROM groups WHERE environment = ? AND draw >= ? ORDER BY draw", environment, since
    )
    return [draw for (draw,) in rows]


def register_trainer(dialect: SqlDialect, trainer: TrainerRow) -> Transaction[None]:
    if trainer.batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, not {trainer.batch_size}")
    if unknown := set(trainer.needs) - set(NEEDS):
        raise ConfigError(f"a trainer can need {' and '.join(NEEDS)}, not {', '.join(sorted(unknown))}")
    yield from take_lock(dialect)
    yield from execute(
        "INSERT INTO trainers (name, batch_size, max_staleness, needs, settings, registration, registered_at) "
        f"VALUES (?, ?, ?, ?, ?, (SELECT COALESCE(MAX(registration), 0) + 1 FROM trainers), {dialect.now}) "
        "ON CONFLICT (name) DO UPDATE SET batch_size = excluded.batch_size, max_staleness = excluded.max_staleness, "
        "needs = excluded.needs, settings = excluded.settings, registration = excluded.registration, "
        "registered_at = excluded.registered_at",
        *(sanitize_text(trainer.name), trainer.batch_size, trainer.max_staleness),
        *(" ".join(trainer.needs), _json(trainer.settings)),
    )


def latest_trainer() -> Transaction[TrainerRow | None]:
    row = yield from fetch_one(
        "SELECT name, batch_size, max_staleness, needs, settings FROM trainers ORDER BY registration DESC LIMIT 1"
    )
    if row is None:
        return None
    name, batch_size, max_staleness, needs, settings = row
    return TrainerRow(name, batch_size, max_staleness, tuple(needs.split()), fast_json.loads(settings))


def forget_trainer(dialect: SqlDialect, name: str) -> Transaction[None]:
    """Remove a trainer until it registers again; its batches stay."""
    yield from take_lock(dialect)
    yield from execute("DELETE FROM trainers WHERE name = ?", name)


def set_version(dialect: SqlDialect, version: int, by: str) -> Transaction[bool]:
    """Whether the version is new. VersionUsedError when another trainer set it or it is not above the last."""
    yield from take_lock(dialect)
    by = sanitize_text(by)
    known = yield from fetch_one("SELECT by_whom FROM versions WHERE version = ?", version)
    if known == (by,):
        return False
    [(last,)] = yield from execute("SELECT COALESCE(MAX(version), -1) FROM versions")
    if known is not None or version <= last:
        raise VersionUsedError(f"version {version} may name other weights already; the next is {last + 1} or above")
    yield from execute(f"INSERT INTO versions (version, by_whom, set_at) VALUES (?, ?, {dialect.now})", version, by)
    return True


def environment_from_row(row: Row) -> EnvironmentRow:
    number, name, instance, group_size, weight, minimum, settings, seen_at, connected, running, cursor = row
    return EnvironmentRow(
        id=number,
        name=name,
        instance=instance,
        group_size=group_size,
        # SQLite's RETURNING gives a REAL without fraction as an integer.
        weight=float(weight),
        minimum=float(minimum),
        settings=fast_json.loads(settings),
        seen_at=float(seen_at),
        connected=bool(connected),
        running=running,
        cursor=cursor,
    )


def _json(value: Mapping[str, Any]) -> str:
    return fast_json.dumps(value).decode().replace("\\u0000", "\\ufffd")

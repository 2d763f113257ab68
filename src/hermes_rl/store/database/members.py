"""Who takes part: environments with their place in the dataset, trainers, and the versions of the policy.

Always true: an environment keeps its number when it registers again; its cursor never goes back; a version of the
policy is above all before it, and only who set it may say it again.
"""

# Values travel apart from the SQL: only columns and expressions of our own are written into it.
# ruff: noqa: S608

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.store.database.errors import UnknownEnvironmentError, VersionUsedError
from hermes_rl.store.database.rows import plain
from hermes_rl.store.database.steps import Dialect, Row, Steps, ask, lock, now, one

NEEDS = ("logprobs", "versions", "one_sequence")
ENVIRONMENT = "id, name, instance, group_size, weight, minimum, settings, seen_at, connected, running, cursor_draw"


@dataclass(frozen=True, slots=True)
class Environment:
    """A registered environment. `instance` tells replicas of one name apart; `cursor` is the next draw to make.

    `minimum` is a part of each batch, 0 to 1. `running` is in rollouts, as it said last.
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
class Trainer:
    """A registered trainer. `needs` is what a group must have for it, of NEEDS; `max_staleness` is in versions."""

    name: str
    batch_size: int
    max_staleness: int | None = None
    needs: tuple[str, ...] = ("logprobs", "versions")
    settings: Mapping[str, Any] = field(default_factory=dict)


def register_environment(
    dialect: Dialect,
    name: str,
    instance: str,
    group_size: int | None,
    weight: float,
    minimum: float,
    settings: Mapping[str, Any],
) -> Steps[Environment]:
    if not 0 <= minimum <= 1:
        raise ConfigError(f"an environment's minimum is a part of each batch, 0 to 1, not {minimum}")
    if not 0 <= weight < float("inf"):
        raise ConfigError(f"an environment's weight is a number from 0 up, not {weight}")
    moment = yield from now(dialect)
    [row] = yield from ask(
        "INSERT INTO environments (name, instance, group_size, weight, minimum, settings, registered_at, seen_at, "
        "connected, running) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, 0) ON CONFLICT (name, instance) DO UPDATE SET "
        "group_size = excluded.group_size, weight = excluded.weight, minimum = excluded.minimum, "
        "settings = excluded.settings, registered_at = excluded.registered_at, seen_at = excluded.seen_at, "
        f"connected = 1, running = 0, wanted = 0 RETURNING {ENVIRONMENT}",
        *(plain(name), plain(instance), group_size, weight, minimum, _json(settings), moment, moment),
    )
    return environment_of(row)


def heartbeat(dialect: Dialect, environment: int, running: int, cursor: int | None) -> Steps[None]:
    """Say that it lives and what it runs; a cursor is kept when it is beyond the last."""
    row = yield from one(
        f"UPDATE environments SET seen_at = {dialect.now}, connected = 1, running = ?, cursor_draw = "
        "CASE WHEN cursor_draw IS NULL OR cursor_draw < ? THEN ? ELSE cursor_draw END WHERE id = ? RETURNING id",
        *(running, -1 if cursor is None else cursor, cursor, environment),
    )
    if row is None:
        raise UnknownEnvironmentError(f"no environment {environment} is registered; register it again")


def disconnect(environment: int) -> Steps[None]:
    yield from ask("UPDATE environments SET connected = 0, running = 0, wanted = 0 WHERE id = ?", environment)


def environments() -> Steps[list[Environment]]:
    rows = yield from ask(f"SELECT {ENVIRONMENT} FROM environments ORDER BY id")
    return [environment_of(row) for row in rows]


def finished_draws(environment: int, since: int) -> Steps[list[int]]:
    """The draws from `since` on whose groups are in the store, to be left out on resume."""
    rows = yield from ask(
        "SELECT DISTINCT draw FROM groups WHERE environment = ? AND draw >= ? ORDER BY draw", environment, since
    )
    return [draw for (draw,) in rows]


def register_trainer(dialect: Dialect, trainer: Trainer) -> Steps[None]:
    if trainer.batch_size < 1:
        raise ConfigError(f"a batch is of one rollout at least, not {trainer.batch_size}")
    if unknown := set(trainer.needs) - set(NEEDS):
        raise ConfigError(f"a trainer can need {' and '.join(NEEDS)}, not {', '.join(sorted(unknown))}")
    yield from lock(dialect)
    yield from ask(
        "INSERT INTO trainers (name, batch_size, max_staleness, needs, settings, registration, registered_at) "
        f"VALUES (?, ?, ?, ?, ?, (SELECT COALESCE(MAX(registration), 0) + 1 FROM trainers), {dialect.now}) "
        "ON CONFLICT (name) DO UPDATE SET batch_size = excluded.batch_size, max_staleness = excluded.max_staleness, "
        "needs = excluded.needs, settings = excluded.settings, registration = excluded.registration, "
        "registered_at = excluded.registered_at",
        *(plain(trainer.name), trainer.batch_size, trainer.max_staleness),
        *(" ".join(trainer.needs), _json(trainer.settings)),
    )


def latest_trainer() -> Steps[Trainer | None]:
    row = yield from one(
        "SELECT name, batch_size, max_staleness, needs, settings FROM trainers ORDER BY registration DESC LIMIT 1"
    )
    if row is None:
        return None
    name, batch_size, max_staleness, needs, settings = row
    return Trainer(name, batch_size, max_staleness, tuple(needs.split()), jsontext.loads(settings))


def forget_trainer(dialect: Dialect, name: str) -> Steps[None]:
    """Nobody leases as this trainer until it registers again; its batches stay."""
    yield from lock(dialect)
    yield from ask("DELETE FROM trainers WHERE name = ?", name)


def set_version(dialect: Dialect, version: int, by: str) -> Steps[bool]:
    """Whether it is new; a version that was set by somebody else, or is not above the last, is refused."""
    yield from lock(dialect)
    by = plain(by)
    known = yield from one("SELECT by_whom FROM versions WHERE version = ?", version)
    if known == (by,):
        return False
    [(last,)] = yield from ask("SELECT COALESCE(MAX(version), -1) FROM versions")
    if known is not None or version <= last:
        raise VersionUsedError(f"version {version} may name other weights already; the next is {last + 1} or above")
    yield from ask(f"INSERT INTO versions (version, by_whom, set_at) VALUES (?, ?, {dialect.now})", version, by)
    return True


def environment_of(row: Row) -> Environment:
    number, name, instance, group_size, weight, minimum, settings, seen_at, connected, running, cursor = row
    return Environment(
        id=number,
        name=name,
        instance=instance,
        group_size=group_size,
        # SQLite's RETURNING gives a REAL that is whole as an integer.
        weight=float(weight),
        minimum=float(minimum),
        settings=jsontext.loads(settings),
        seen_at=float(seen_at),
        connected=bool(connected),
        running=running,
        cursor=cursor,
    )


def _json(value: Mapping[str, Any]) -> str:
    return jsontext.dumps(value).decode().replace("\\u0000", "\\ufffd")

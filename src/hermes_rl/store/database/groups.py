"""Stores groups: written once with all their rows; their bytes are deleted by the retention policy.

Always true: posting an id again changes nothing; a group that is queued, leased or not yet indexed keeps its bytes;
rows outlive bytes. `place` is a group's position in the queue.
"""

# Values are passed as parameters; only our own column names and expressions are formatted into SQL.
# ruff: noqa: S608

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.store.database.errors import UnknownEnvironmentError
from hermes_rl.store.database.rows import GroupRow, rollout_id
from hermes_rl.store.database.transactions import (
    SqlDialect,
    Transaction,
    database_time,
    execute,
    execute_many,
    fetch_one,
    insert_rows,
    placeholders,
)

# PostgreSQL may commit a group after one with a higher place; by then almost always both are visible.
SETTLE_SECONDS = 2.0
ROLLOUT_COLUMNS = (
    "number, item_id, seed, score, stop_reason, failure, cause, withheld, turns, sequences, tokens, "
    "prompt_tokens, completion_tokens, seconds, seat"
)


@dataclass(frozen=True, slots=True)
class AddResult:
    """Whether the group was new, and its position in the queue."""

    new: bool
    place: int


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group to add to the store."""

    environment: int
    group: GroupRow
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group in the store. `data` is None when its bytes were deleted."""

    place: int
    id: str
    environment: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class GroupScores:
    """The scores of a group's scored rollouts, in order."""

    place: int
    item_id: str
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits on the bytes kept of trained or dropped groups, by age and total size; None for no limit."""

    seconds: float | None = None
    bytes: int | None = None


def add_groups(dialect: SqlDialect, posts: Sequence[NewGroup]) -> Transaction[list[AddResult | Exception]]:
    """Add those that are new, with one statement per table for all groups."""
    numbers = sorted({post.environment for post in posts})
    rows = yield from execute(f"SELECT id FROM environments WHERE id IN ({placeholders(len(numbers))})", *numbers)
    environments = {number for (number,) in rows}
    first: dict[str, NewGroup] = {}
    for post in posts:
        if post.environment in environments:
            first.setdefault(post.group.id, post)
    positions = yield from _insert_groups(dialect, list(first.values()))
    kept = [(positions[name], post) for name, post in first.items() if name in positions]
    yield from _insert_parts(dialect, kept)
    present = yield from _positions([name for name in first if name not in positions])
    return [
        AddResult(new=True, place=positions[post.group.id])
        if first.get(post.group.id) is post and post.group.id in positions
        else AddResult(new=False, place=(positions | present)[post.group.id])
        if post.environment in environments
        else UnknownEnvironmentError(f"no environment {post.environment} is registered; register it, then post again")
        for post in posts
    ]


def _insert_groups(dialect: SqlDialect, posts: list[NewGroup]) -> Transaction[dict[str, int]]:
    """The positions of the new groups, by id."""
    if not posts:
        return {}
    values = ", ".join([f"({placeholders(11)}, {dialect.now}, ?, 1)"] * len(posts))
    rows = yield from execute(
        "INSERT INTO groups (id, content_id, environment, item_id, split, draw, rollouts, size, oldest_version, lacks, "
        f"withheld, arrived_at, bytes, kept) VALUES {values} ON CONFLICT (id) DO NOTHING RETURNING id, place",
        *(value for post in posts for value in _group_values(post)),
    )
    return dict(rows)


def _group_values(post: NewGroup) -> tuple[Any, ...]:
    group = post.group
    return (
        group.id,
        group.content_id,
        post.environment,
        group.item_id,
        group.split,
        group.draw,
        len(group.rollouts),
        group.size,
        group.oldest_version,
        " ".join(group.lacks),
        group.withheld,
        len(post.data),
    )


def _insert_parts(dialect: SqlDialect, kept: list[tuple[int, NewGroup]]) -> Transaction[None]:
    yield from execute_many(
        "INSERT INTO blobs (place, data) VALUES (?, ?)", ((place, post.data) for place, post in kept)
    )
    yield from insert_rows(
        "INSERT INTO queue (place, environment, size, oldest_version, lacks)",
        [
            (place, post.environment, post.group.size, post.group.oldest_version, " ".join(post.group.lacks))
            for place, post in kept
            if post.group.refusal is None
        ],
    )
    yield from execute_many(
        "INSERT INTO outcomes (place, environment, size, outcome, cause, at) "
        f"VALUES (?, ?, ?, 'dropped', ?, {dialect.now})",
        (
            (place, post.environment, post.group.size, post.group.refusal)
            for place, post in kept
            if post.group.refusal is not None
        ),
    )
    yield from insert_rows(
        f"INSERT INTO rollouts (id, place, environment, {ROLLOUT_COLUMNS})",
        [
            (rollout_id(place, row.number), place, post.environment, *row)
            for place, post in kept
            for row in post.group.rollouts
        ],
    )
    yield from insert_rows("INSERT INTO unindexed (place)", [(place,) for place, _ in kept])


def _positions(ids: list[str]) -> Transaction[dict[str, int]]:
    if not ids:
        return {}
    return dict((yield from execute(f"SELECT id, place FROM groups WHERE id IN ({placeholders(len(ids))})", *ids)))


def unindexed(limit: int) -> Transaction[list[tuple[int, bytes | None]]]:
    """The oldest groups that are not indexed for search: position and bytes."""
    return [
        (place, data)
        for place, data in (
            yield from execute(
                "SELECT u.place, b.data FROM unindexed u LEFT JOIN blobs b ON b.place = u.place "
                "ORDER BY u.place LIMIT ?",
                limit,
            )
        )
    ]


def index_texts(dialect: SqlDialect, place: int, texts: Sequence[str]) -> Transaction[None]:
    """Index a group's text for search, unless another replica did."""
    if (yield from fetch_one("DELETE FROM unindexed WHERE place = ? RETURNING place", place)) is not None:
        yield from insert_rows(
            f"INSERT INTO texts ({dialect.text_key}, text)",
            [(rollout_id(place, number), text) for number, text in enumerate(texts) if text],
        )


def find_group(column: str, value: int | str) -> Transaction[StoredGroup | None]:
    row = yield from fetch_one(
        "SELECT g.place, g.id, g.environment, b.data FROM groups g LEFT JOIN blobs b ON b.place = g.place "
        f"WHERE g.{column} = ?",
        value,
    )
    return None if row is None else StoredGroup(*row)


def group_scores(dialect: SqlDialect, environment: int, after: int, limit: int) -> Transaction[list[GroupScores]]:
    """The first `limit` training groups behind the place `after`, of all environments with the name of this one."""
    row = yield from fetch_one("SELECT name FROM environments WHERE id = ?", environment)
    if row is None:
        raise UnknownEnvironmentError(f"no environment {environment} is registered; register it again")
    numbers = [number for (number,) in (yield from execute("SELECT id FROM environments WHERE name = ?", row[0]))]
    settled = f"AND arrived_at < {dialect.now} - {SETTLE_SECONDS}" if dialect.lock else ""
    # The unary plus keeps SQLite from reading all groups by the index on environments.
    rows = yield from execute(
        f"SELECT place, item_id FROM groups WHERE place > ? AND +environment IN ({placeholders(len(numbers))}) "
        f"AND split = 'train' {settled} ORDER BY place LIMIT ?",
        *(after, *numbers, limit),
    )
    if not rows:
        return []
    found: dict[int, list[float]] = {place: [] for place, _ in rows}
    scored = yield from execute(
        "SELECT place, score FROM rollouts WHERE id >= ? AND id < ? AND score IS NOT NULL ORDER BY id",
        *(rollout_id(rows[0][0], 0), rollout_id(rows[-1][0] + 1, 0)),
    )
    for place, score in scored:
        if place in found:
            found[place].append(score)
    return [GroupScores(place, item_id, tuple(found[place])) for place, item_id in rows]


def discard(dialect: SqlDialect, retention: Retention, limit: int) -> Transaction[int]:
    """Delete the bytes of up to `limit` groups by policy; returns their number."""
    positions: list[int] = []
    ended = "SELECT g.place, g.bytes FROM groups g JOIN outcomes o ON o.place = g.place WHERE g.kept = 1"
    ended += " AND NOT EXISTS (SELECT 1 FROM unindexed u WHERE u.place = g.place)"
    if retention.seconds is not None:
        before = (yield from database_time(dialect)) - retention.seconds
        rows = yield from execute(f"{ended} AND o.at < ? ORDER BY g.place LIMIT ?", before, limit)
        positions = [place for place, _ in rows]
    if retention.bytes is not None and len(positions) < limit:
        [(total,)] = yield from execute("SELECT COALESCE(SUM(bytes), 0) FROM groups WHERE kept = 1")
        rows = yield from execute(f"{ended} ORDER BY g.place LIMIT ?", limit)
        excess = int(total) - retention.bytes
        for place, size in rows:
            if excess <= 0:
                break
            excess -= size
            if place not in positions:
                positions.append(place)
    positions = positions[:limit]
    yield from execute_many("DELETE FROM blobs WHERE place = ?", ((place,) for place in positions))
    yield from execute_many("UPDATE groups SET kept = 0 WHERE place = ?", ((place,) for place in positions))
    return len(positions)

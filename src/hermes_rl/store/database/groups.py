"""Groups as they come in and lie there: written once with all their rows, their bytes let go by policy.

Always true: an id is one group, whoever posts it however often, and the first to come is kept; a group that waits or is
leased keeps its bytes, and so does one whose words are not indexed yet; rows outlive bytes.
"""

# Values travel apart from the SQL: only columns and expressions of our own are written into it.
# ruff: noqa: S608

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.store.database.errors import UnknownEnvironmentError
from hermes_rl.store.database.rows import GroupRow, rollout_id
from hermes_rl.store.database.steps import Dialect, Steps, ask, each, insert, marks, now, one

ROLLOUT_COLUMNS = (
    "number, item_id, seed, score, stop_reason, failure, cause, withheld, turns, sequences, tokens, "
    "prompt_tokens, completion_tokens, seconds"
)


@dataclass(frozen=True, slots=True)
class Added:
    """What became of a post: whether the group was new, and its place in the queue."""

    new: bool
    place: int


@dataclass(frozen=True, slots=True)
class Post:
    """A group on its way into the store."""

    environment: int
    group: GroupRow
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as it lies in the store. `data` is None when its bytes were let go."""

    place: int
    id: str
    environment: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the bytes of groups that were trained on or dropped are kept; None for ever."""

    seconds: float | None = None
    bytes: int | None = None


def add_groups(dialect: Dialect, posts: Sequence[Post]) -> Steps[list[Added | Exception]]:
    """Keep the new ones among them. All rows of a table go by one statement, however many groups there are."""
    numbers = sorted({post.environment for post in posts})
    rows = yield from ask(f"SELECT id FROM environments WHERE id IN ({marks(len(numbers))})", *numbers)
    environments = {number for (number,) in rows}
    first: dict[str, Post] = {}
    for post in posts:
        if post.environment in environments:
            first.setdefault(post.group.id, post)
    places = yield from _insert_groups(dialect, list(first.values()))
    kept = [(places[name], post) for name, post in first.items() if name in places]
    yield from _insert_parts(dialect, kept)
    present = yield from _places([name for name in first if name not in places])
    return [
        Added(new=True, place=places[post.group.id])
        if first.get(post.group.id) is post and post.group.id in places
        else Added(new=False, place=(places | present)[post.group.id])
        if post.environment in environments
        else UnknownEnvironmentError(f"no environment {post.environment} is registered; register it, then post again")
        for post in posts
    ]


def _insert_groups(dialect: Dialect, posts: list[Post]) -> Steps[dict[str, int]]:
    """The places of those that are new, by id."""
    if not posts:
        return {}
    values = ", ".join([f"({marks(11)}, {dialect.now}, ?, 1)"] * len(posts))
    rows = yield from ask(
        "INSERT INTO groups (id, content_id, environment, item_id, split, draw, rollouts, size, oldest_version, lacks, "
        f"withheld, arrived_at, bytes, kept) VALUES {values} ON CONFLICT (id) DO NOTHING RETURNING id, place",
        *(value for post in posts for value in _group_values(post)),
    )
    return dict(rows)


def _group_values(post: Post) -> tuple[Any, ...]:
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


def _insert_parts(dialect: Dialect, kept: list[tuple[int, Post]]) -> Steps[None]:
    yield from each("INSERT INTO blobs (place, data) VALUES (?, ?)", ((place, post.data) for place, post in kept))
    yield from insert(
        "INSERT INTO queue (place, environment, size, oldest_version, lacks)",
        [
            (place, post.environment, post.group.size, post.group.oldest_version, " ".join(post.group.lacks))
            for place, post in kept
            if post.group.refusal is None
        ],
    )
    yield from each(
        "INSERT INTO outcomes (place, environment, size, outcome, cause, at) "
        f"VALUES (?, ?, ?, 'dropped', ?, {dialect.now})",
        (
            (place, post.environment, post.group.size, post.group.refusal)
            for place, post in kept
            if post.group.refusal is not None
        ),
    )
    yield from insert(
        f"INSERT INTO rollouts (id, place, environment, {ROLLOUT_COLUMNS})",
        [
            (rollout_id(place, row.number), place, post.environment, *row)
            for place, post in kept
            for row in post.group.rollouts
        ],
    )
    yield from insert("INSERT INTO unindexed (place)", [(place,) for place, _ in kept])


def _places(ids: list[str]) -> Steps[dict[str, int]]:
    if not ids:
        return {}
    return dict((yield from ask(f"SELECT id, place FROM groups WHERE id IN ({marks(len(ids))})", *ids)))


def unindexed(most: int) -> Steps[list[tuple[int, bytes | None]]]:
    """The oldest groups whose words are not indexed: place and bytes."""
    return [
        (place, data)
        for place, data in (
            yield from ask(
                "SELECT u.place, b.data FROM unindexed u LEFT JOIN blobs b ON b.place = u.place "
                "ORDER BY u.place LIMIT ?",
                most,
            )
        )
    ]


def index_texts(dialect: Dialect, place: int, texts: Sequence[str]) -> Steps[None]:
    """Index the words of a group, unless another replica has."""
    if (yield from one("DELETE FROM unindexed WHERE place = ? RETURNING place", place)) is not None:
        yield from insert(
            f"INSERT INTO texts ({dialect.text_key}, text)",
            [(rollout_id(place, number), text) for number, text in enumerate(texts) if text],
        )


def find_group(column: str, value: int | str) -> Steps[StoredGroup | None]:
    row = yield from one(
        "SELECT g.place, g.id, g.environment, b.data FROM groups g LEFT JOIN blobs b ON b.place = g.place "
        f"WHERE g.{column} = ?",
        value,
    )
    return None if row is None else StoredGroup(*row)


def discard(dialect: Dialect, retention: Retention, most: int) -> Steps[int]:
    """Let go of the bytes of at most `most` groups; how many it were."""
    places: list[int] = []
    ended = "SELECT g.place, g.bytes FROM groups g JOIN outcomes o ON o.place = g.place WHERE g.kept = 1"
    ended += " AND NOT EXISTS (SELECT 1 FROM unindexed u WHERE u.place = g.place)"
    if retention.seconds is not None:
        before = (yield from now(dialect)) - retention.seconds
        rows = yield from ask(f"{ended} AND o.at < ? ORDER BY g.place LIMIT ?", before, most)
        places = [place for place, _ in rows]
    if retention.bytes is not None and len(places) < most:
        [(total,)] = yield from ask("SELECT COALESCE(SUM(bytes), 0) FROM groups WHERE kept = 1")
        rows = yield from ask(f"{ended} ORDER BY g.place LIMIT ?", most)
        excess = int(total) - retention.bytes
        for place, size in rows:
            if excess <= 0:
                break
            excess -= size
            if place not in places:
                places.append(place)
    places = places[:most]
    yield from each("DELETE FROM blobs WHERE place = ?", ((place,) for place in places))
    yield from each("UPDATE groups SET kept = 0 WHERE place = ?", ((place,) for place in places))
    return len(places)

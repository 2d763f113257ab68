"""Queries on an index: pages and lookups of groups and rollouts.

Always true: pages use cursors (keyset pagination), and every result is bounded.
"""

# Values are passed as parameters; only our own column names and expressions are formatted into SQL.
# ruff: noqa: S608

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.viewer.index.pagination import SortOrder
from hermes_rl.viewer.summaries import MAX_ROLLOUTS, NUMBER_BITS, rollout_number, space_cjk

MAX_ROWS = 200
# Counting stops here: a page needs no exact number beyond it.
MAX_COUNT = 1_000_000
MAX_COUNT_WITH_WORDS = 10_000
MAX_WORDS = 20
NOT_A_WORD = re.compile(r"[\W_]+")
GROUP_SORTS = {"n": "g.n", "mean": "g.mean", "spread": "g.spread", "rollouts": "g.rollouts"}
ROLLOUT_SORTS = {
    "n": "r.n",
    "score": "r.score",
    "turns": "r.turns",
    "seconds": "r.seconds",
    "tokens": "r.completion_tokens",
    "tool_calls": "r.tool_calls",
    "tool_errors": "r.tool_errors",
}
ROLLOUT_COLUMNS = (
    "r.n, r.position, r.number, r.score, r.failure, r.stop_reason, r.withheld, r.turns, r.tool_calls, r.tool_errors, "
    "r.completion_tokens, r.seconds, r.version_low, r.version_high, r.tools, r.offset, r.length, r.seat, "
    "r.branch_of, r.branch_turn"
)


@dataclass(frozen=True, slots=True)
class IndexedGroup:
    n: int
    offset: int
    length: int
    id: str
    item_id: str | None
    title: str
    draw: int | None
    split: str | None
    created_at: str | None
    withheld: str | None
    rollouts: int
    scored: int
    mean: float | None
    spread: float | None


@dataclass(frozen=True, slots=True)
class IndexedRollout:
    n: int
    position: int
    number: int
    score: float | None
    failure: str | None
    stop_reason: str | None
    withheld: str | None
    turns: int | None
    tool_calls: int
    tool_errors: int
    completion_tokens: int | None
    seconds: float | None
    version_low: int | None
    version_high: int | None
    tools: str
    offset: int | None
    length: int | None
    seat: str | None
    branch_of: int | None
    branch_turn: int | None

    @property
    def group(self) -> int:
        return self.n >> NUMBER_BITS


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Filters; None for any. `text` holds words that must all be in the conversation, `x*` for a prefix."""

    min_score: float | None = None
    max_score: float | None = None
    stop_reason: str | None = None
    failure: str | None = None
    tool: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class RowPage:
    """`next` is the cursor of the next page, None on the last; `total` is None when there are too many to count."""

    rows: list[Any]
    next: str | None
    total: int | None


def list_groups(connection: sqlite3.Connection, *, sort: str, after: str | None, limit: int) -> RowPage:
    order = SortOrder.parse(sort, GROUP_SORTS, after)
    condition, values = order.condition("g.n")
    found = connection.execute(
        f"SELECT g.*, {order.column} FROM groups g WHERE {condition} ORDER BY {order.order_by('g.n')} LIMIT ?",
        (*values, limit + 1),
    ).fetchall()
    [(total,)] = connection.execute("SELECT value FROM facts WHERE name = 'groups'").fetchall() or [(0,)]
    rows = [IndexedGroup(*row[:-1]) for row in found[:limit]]
    return RowPage(rows, order.cursor(found[limit - 1][-1], rows[-1].n, None) if len(found) > limit else None, total)


def list_rollouts(
    connection: sqlite3.Connection, filters: RolloutFilter, *, sort: str, after: str | None, limit: int
) -> RowPage:
    order = SortOrder.parse(sort, ROLLOUT_SORTS, after)
    conditions = list(_conditions(filters))
    words = _match_query(filters.text)
    if words is not None:
        conditions.append(("r.n IN (SELECT rowid FROM words WHERE words MATCH ?)", words))
    filtered = " AND ".join(sql for sql, _ in conditions) or "1"
    values = [value for _, value in conditions]
    condition, beyond = order.condition("r.n")
    found = connection.execute(
        f"SELECT {ROLLOUT_COLUMNS}, {order.column} FROM rollouts r WHERE {filtered} AND {condition} "
        f"ORDER BY {order.order_by('r.n')} LIMIT ?",
        (*values, *beyond, limit + 1),
    ).fetchall()
    rows = [IndexedRollout(*row[:-1]) for row in found[:limit]]
    if not conditions:
        total: int | None = _total(connection)
    elif order.last is not None:
        total = order.last.total
    else:
        total = _count(connection, filtered, values, filters, words)
    return RowPage(rows, order.cursor(found[limit - 1][-1], rows[-1].n, total) if len(found) > limit else None, total)


def find_group(connection: sqlite3.Connection, number: int) -> IndexedGroup | None:
    row = connection.execute("SELECT * FROM groups WHERE n = ?", (number,)).fetchone()
    return None if row is None else IndexedGroup(*row)


def find_groups(connection: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, IndexedGroup]:
    marks = ", ".join("?" * len(numbers))
    found = connection.execute(f"SELECT * FROM groups WHERE n IN ({marks})", numbers)
    return {row[0]: IndexedGroup(*row) for row in found}


def evenly_spaced_groups(connection: sqlite3.Connection, count: int) -> list[int]:
    """The numbers of up to `count` groups, evenly spaced from the first to the last."""
    numbers = [number for (number,) in connection.execute("SELECT n FROM groups ORDER BY n")]
    if len(numbers) <= count:
        return numbers
    last = len(numbers) - 1
    return [numbers[round(index * last / max(count - 1, 1))] for index in range(count)]


def find_rollout(connection: sqlite3.Connection, number: int) -> IndexedRollout | None:
    row = connection.execute(f"SELECT {ROLLOUT_COLUMNS} FROM rollouts r WHERE r.n = ?", (number,)).fetchone()
    return None if row is None else IndexedRollout(*row)


def group_rollouts(connection: sqlite3.Connection, group: int, limit: int = MAX_ROWS) -> list[IndexedRollout]:
    found = connection.execute(
        f"SELECT {ROLLOUT_COLUMNS} FROM rollouts r WHERE r.n BETWEEN ? AND ? ORDER BY r.n LIMIT ?",
        (rollout_number(group, 0), rollout_number(group, MAX_ROLLOUTS - 1), limit),
    )
    return [IndexedRollout(*row) for row in found]


def search_words(text: str | None) -> list[str]:
    """The words of a search, each with its `*` if it has one."""
    found: list[str] = []
    for piece in space_cjk(text or "").split():
        parts = [part for part in NOT_A_WORD.split(piece) if part]
        # A one-letter prefix matches too much to be useful.
        begins = piece.endswith("*") and any(len(part) > 1 for part in parts[-1:])
        found += parts[:-1] + [f"{part}*" if begins else part for part in parts[-1:]]
    return found[:MAX_WORDS]


def _conditions(filters: RolloutFilter) -> Iterator[tuple[str, Any]]:
    named = {
        "r.score >= ?": filters.min_score,
        "r.score <= ?": filters.max_score,
        "r.stop_reason = ?": filters.stop_reason,
        "EXISTS (SELECT 1 FROM tools t WHERE t.tool = ? AND t.n = r.n)": filters.tool,
    }
    yield from ((sql, value) for sql, value in named.items() if value is not None)
    if filters.failure == "any":
        yield "r.failure IS NOT ?", None
    elif filters.failure == "none":
        yield "r.failure IS ?", None
    elif filters.failure is not None:
        yield "r.failure = ?", filters.failure


def _match_query(text: str | None) -> str | None:
    if not text or not text.strip():
        return None
    words = search_words(text)
    # A search without any word must find nothing.
    return " ".join(f'"{word.removesuffix("*")}"{"*" * word.endswith("*")}' for word in words) or '"\u0001"'


def _count(
    connection: sqlite3.Connection, filtered: str, values: list[Any], filters: RolloutFilter, words: str | None
) -> int | None:
    where = f"rollouts r WHERE {filtered}"
    limit = MAX_COUNT if words is None or len(values) == 1 else MAX_COUNT_WITH_WORDS
    # For a word or a tool alone, its own table is faster.
    if len(values) == 1 and words is not None:
        where = "words WHERE words MATCH ?"
    elif len(values) == 1 and filters.tool is not None:
        where = "tools WHERE tool = ?"
    sql = f"SELECT COUNT(*) FROM (SELECT 1 FROM {where} LIMIT {limit})"
    [(count,)] = connection.execute(sql, values).fetchall()
    return None if count >= limit else count


def _total(connection: sqlite3.Connection) -> int:
    [(total,)] = connection.execute("SELECT value FROM facts WHERE name = 'rollouts'").fetchall() or [(0,)]
    return total or 0

"""Questions to an index: pages of groups and of rollouts, sums over all of them.

Always true: a page is found by where the last one ended; all that is given is bounded, whatever is asked.
"""

# Values travel apart from the SQL: only columns and expressions of our own are written into it.
# ruff: noqa: S608

import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.viewer.described import MOST_ROLLOUTS, NUMBER_BITS, rollout_number, spaced
from hermes_rl.viewer.index.ordering import Order

MOST_ROWS = 200
# Counting goes no further: on one page nobody needs to know more exactly.
COUNTED = 1_000_000
COUNTED_WITH_WORDS = 10_000
WORDS = 20
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
    "r.completion_tokens, r.seconds, r.version_low, r.version_high, r.tools, r.offset, r.length"
)


@dataclass(frozen=True, slots=True)
class GroupRow:
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
class RolloutRow:
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

    @property
    def group(self) -> int:
        return self.n >> NUMBER_BITS


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rollouts; None for any. `text` are words that all stand in the conversation, `x*` the beginning of one."""

    min_score: float | None = None
    max_score: float | None = None
    stop_reason: str | None = None
    failure: str | None = None
    tool: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """`next` asks for the page after it, None on the last; `total` is None where there are too many to count."""

    rows: list[Any]
    next: str | None
    total: int | None


def list_groups(connection: sqlite3.Connection, *, sort: str, after: str | None, limit: int) -> Page:
    order = Order.of(sort, GROUP_SORTS, after)
    condition, values = order.condition("g.n")
    found = connection.execute(
        f"SELECT g.*, {order.column} FROM groups g WHERE {condition} ORDER BY {order.by('g.n')} LIMIT ?",
        (*values, limit + 1),
    ).fetchall()
    [(total,)] = connection.execute("SELECT value FROM facts WHERE name = 'groups'").fetchall() or [(0,)]
    rows = [GroupRow(*row[:-1]) for row in found[:limit]]
    return Page(rows, order.mark(found[limit - 1][-1], rows[-1].n, None) if len(found) > limit else None, total)


def list_rollouts(connection: sqlite3.Connection, wanted: Wanted, *, sort: str, after: str | None, limit: int) -> Page:
    order = Order.of(sort, ROLLOUT_SORTS, after)
    conditions = list(_conditions(wanted))
    words = _words(wanted.text)
    if words is not None:
        conditions.append(("r.n IN (SELECT rowid FROM words WHERE words MATCH ?)", words))
    filtered = " AND ".join(sql for sql, _ in conditions) or "1"
    values = [value for _, value in conditions]
    condition, beyond = order.condition("r.n")
    found = connection.execute(
        f"SELECT {ROLLOUT_COLUMNS}, {order.column} FROM rollouts r WHERE {filtered} AND {condition} "
        f"ORDER BY {order.by('r.n')} LIMIT ?",
        (*values, *beyond, limit + 1),
    ).fetchall()
    rows = [RolloutRow(*row[:-1]) for row in found[:limit]]
    if not conditions:
        total: int | None = _total(connection)
    elif order.last is not None:
        total = order.last.total
    else:
        total = _count(connection, filtered, values, wanted, words)
    return Page(rows, order.mark(found[limit - 1][-1], rows[-1].n, total) if len(found) > limit else None, total)


def find_group(connection: sqlite3.Connection, number: int) -> GroupRow | None:
    row = connection.execute("SELECT * FROM groups WHERE n = ?", (number,)).fetchone()
    return None if row is None else GroupRow(*row)


def find_groups(connection: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, GroupRow]:
    marks = ", ".join("?" * len(numbers))
    found = connection.execute(f"SELECT * FROM groups WHERE n IN ({marks})", numbers)
    return {row[0]: GroupRow(*row) for row in found}


def spread_groups(connection: sqlite3.Connection, count: int) -> list[int]:
    """So many of the groups, evenly from the first to the last; all where there are no more."""
    numbers = [number for (number,) in connection.execute("SELECT n FROM groups ORDER BY n")]
    if len(numbers) <= count:
        return numbers
    last = len(numbers) - 1
    return [numbers[round(place * last / max(count - 1, 1))] for place in range(count)]


def find_rollout(connection: sqlite3.Connection, number: int) -> RolloutRow | None:
    row = connection.execute(f"SELECT {ROLLOUT_COLUMNS} FROM rollouts r WHERE r.n = ?", (number,)).fetchone()
    return None if row is None else RolloutRow(*row)


def rollouts_of(connection: sqlite3.Connection, group: int, most: int = MOST_ROWS) -> list[RolloutRow]:
    found = connection.execute(
        f"SELECT {ROLLOUT_COLUMNS} FROM rollouts r WHERE r.n BETWEEN ? AND ? ORDER BY r.n LIMIT ?",
        (rollout_number(group, 0), rollout_number(group, MOST_ROLLOUTS - 1), most),
    )
    return [RolloutRow(*row) for row in found]


def words_of(text: str | None) -> list[str]:
    """The words of a question, each with its `*` where it has one."""
    found: list[str] = []
    for piece in spaced(text or "").split():
        parts = [part for part in NOT_A_WORD.split(piece) if part]
        # One letter begins too many words to be of use.
        begins = piece.endswith("*") and any(len(part) > 1 for part in parts[-1:])
        found += parts[:-1] + [f"{part}*" if begins else part for part in parts[-1:]]
    return found[:WORDS]


def _conditions(wanted: Wanted) -> Iterator[tuple[str, Any]]:
    named = {
        "r.score >= ?": wanted.min_score,
        "r.score <= ?": wanted.max_score,
        "r.stop_reason = ?": wanted.stop_reason,
        "EXISTS (SELECT 1 FROM tools t WHERE t.tool = ? AND t.n = r.n)": wanted.tool,
    }
    yield from ((sql, value) for sql, value in named.items() if value is not None)
    if wanted.failure == "any":
        yield "r.failure IS NOT ?", None
    elif wanted.failure == "none":
        yield "r.failure IS ?", None
    elif wanted.failure is not None:
        yield "r.failure = ?", wanted.failure


def _words(text: str | None) -> str | None:
    if not text or not text.strip():
        return None
    words = words_of(text)
    # Nothing in it is a word: then nothing is found by it.
    return " ".join(f'"{word.removesuffix("*")}"{"*" * word.endswith("*")}' for word in words) or '"\u0001"'


def _count(
    connection: sqlite3.Connection, filtered: str, values: list[Any], wanted: Wanted, words: str | None
) -> int | None:
    where = f"rollouts r WHERE {filtered}"
    most = COUNTED if words is None or len(values) == 1 else COUNTED_WITH_WORDS
    # A word or a tool alone has a list of its own.
    if len(values) == 1 and words is not None:
        where = "words WHERE words MATCH ?"
    elif len(values) == 1 and wanted.tool is not None:
        where = "tools WHERE tool = ?"
    sql = f"SELECT COUNT(*) FROM (SELECT 1 FROM {where} LIMIT {most})"
    [(count,)] = connection.execute(sql, values).fetchall()
    return None if count >= most else count


def _total(connection: sqlite3.Connection) -> int:
    [(total,)] = connection.execute("SELECT value FROM facts WHERE name = 'rollouts'").fetchall() or [(0,)]
    return total or 0

"""Aggregates over a whole index: counts, mean with confidence interval, histogram, failures, tools.

Always true: lists are short. Callers should cache results while the index is unchanged, since this reads every row.
"""

import math
import sqlite3
from typing import Any

from hermes_rl.evaluation.statistics.intervals import mean_interval
from hermes_rl.viewer.summaries import NUMBER_BITS

BINS = 20
MAX_NAMES = 50
# Above this, the normal interval is as good, and needs only sums.
EXACT_SCORES = 10_000
NORMAL_95 = 1.96
MAX_SCORES = 500_000


def summary(connection: sqlite3.Connection) -> dict[str, Any]:
    facts = dict(connection.execute("SELECT name, value FROM facts"))
    return {
        "counts": {name: facts.get(name) or 0 for name in ("groups", "rollouts", "scored", "failed", "withheld")}
        | {"broken": facts.get("broken") or 0},
        "reward": {**interval(connection, facts), "histogram": histogram(connection)},
        "failures": _count_by(connection, "failure", "cause"),
        "stop_reasons": _count_by(connection, "stop_reason", "reason", "AND failure IS NULL AND score IS NOT NULL"),
        "tools": [
            {"name": name, "calls": calls, "errors": errors}
            for name, calls, errors in connection.execute(
                "SELECT tool, SUM(calls) AS c, SUM(errors) FROM tools GROUP BY tool ORDER BY c DESC, tool LIMIT ?",
                (MAX_NAMES,),
            )
        ],
        "broken": [
            {"line": number, "why": why}
            for number, why in connection.execute("SELECT n, why FROM broken ORDER BY n LIMIT ?", (MAX_NAMES,))
        ],
    }


def interval(connection: sqlite3.Connection, facts: dict[str, Any]) -> dict[str, float | None]:
    """The mean of the group means, as in `evaluate`, with its 95% interval clustered by group."""
    if (facts.get("scored") or 0) > EXACT_SCORES:
        [(count, mean, squares)] = connection.execute(
            "SELECT COUNT(*), AVG(mean), AVG(mean * mean) FROM groups WHERE mean IS NOT NULL"
        ).fetchall()
        half = NORMAL_95 * math.sqrt(max(0.0, squares - mean * mean) / max(1, count - 1))
        return {"mean": mean, "low": mean - half, "high": mean + half}
    clusters: dict[int, list[float]] = {}
    for number, score in connection.execute("SELECT n, score FROM rollouts WHERE score IS NOT NULL"):
        clusters.setdefault(number >> NUMBER_BITS, []).append(score)
    found = mean_interval(clusters.values())
    if found is None:
        return {"mean": None, "low": None, "high": None}
    return {"mean": found.estimate, "low": found.low, "high": found.high}


def histogram(connection: sqlite3.Connection) -> dict[str, list[float]]:
    [(low, high)] = connection.execute("SELECT MIN(score), MAX(score) FROM rollouts").fetchall()
    if low is None:
        return {"edges": [], "counts": []}
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low == high:
        low, high = low - 0.5, high + 0.5
    width = (high - low) / BINS
    counts = [0.0] * BINS
    for bucket, count in connection.execute(
        "SELECT CAST((score - ?) / ? AS INTEGER) AS bucket, COUNT(*) FROM rollouts WHERE score IS NOT NULL "
        "GROUP BY bucket",
        (low, width or 1.0),
    ):
        counts[min(max(bucket, 0), BINS - 1)] += count
    return {"edges": [low + width * step for step in range(BINS)] + [high], "counts": [int(count) for count in counts]}


def scores_by_item(connection: sqlite3.Connection) -> dict[str, list[float]]:
    """The scores of each item, in order, for a paired comparison."""
    found: dict[str, list[float]] = {}
    for item, score in connection.execute(
        "SELECT g.item_id, r.score FROM rollouts r JOIN groups g ON g.n = r.n >> ? WHERE g.item_id IS NOT NULL "
        "AND r.score IS NOT NULL ORDER BY r.n LIMIT ?",
        (NUMBER_BITS, MAX_SCORES),
    ):
        found.setdefault(item, []).append(score)
    return found


def group_shape(connection: sqlite3.Connection) -> tuple[int | None, str | None]:
    """The size of the largest group, and the split of all groups; None where there is none, or several."""
    [(size, split, last)] = connection.execute("SELECT MAX(rollouts), MIN(split), MAX(split) FROM groups").fetchall()
    return size, split if split == last else None


def item_titles(connection: sqlite3.Connection, items: list[str]) -> dict[str, str]:
    marks = ", ".join("?" * len(items))
    sql = f"SELECT item_id, MIN(title) FROM groups WHERE item_id IN ({marks}) GROUP BY item_id"  # noqa: S608
    return dict(connection.execute(sql, items))


def _count_by(connection: sqlite3.Connection, column: str, name: str, condition: str = "") -> list[dict[str, Any]]:
    rows = connection.execute(
        f"SELECT {column}, COUNT(*) AS c FROM rollouts WHERE {column} IS NOT NULL {condition} "  # noqa: S608
        f"GROUP BY {column} ORDER BY c DESC, 1 LIMIT ?",
        (MAX_NAMES,),
    )
    return [{name: value, "count": count} for value, count in rows]

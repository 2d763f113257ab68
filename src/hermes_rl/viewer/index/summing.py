"""Sums over all that an index holds: counts, the mean with its interval, the histogram, failures, tools.

Always true: lists are short and sums are those of one moment; whoever asks twice while nothing has changed should keep
the answer, since this reads every row.
"""

import math
import sqlite3
from typing import Any

from hermes_rl.statistics.intervals import mean_interval
from hermes_rl.viewer.described import NUMBER_BITS

BINS = 20
NAMES = 50
# Beyond it the interval of the normal distribution is as good, and comes from sums.
FEW_SCORES = 10_000
NORMAL_95 = 1.96
MOST_SCORES = 500_000


def summary(connection: sqlite3.Connection) -> dict[str, Any]:
    facts = dict(connection.execute("SELECT name, value FROM facts"))
    return {
        "counts": {name: facts.get(name) or 0 for name in ("groups", "rollouts", "scored", "failed", "withheld")}
        | {"broken": facts.get("broken") or 0},
        "reward": {**interval(connection, facts), "histogram": histogram(connection)},
        "failures": _counted(connection, "failure", "cause"),
        "stop_reasons": _counted(connection, "stop_reason", "reason"),
        "tools": [
            {"name": name, "calls": calls, "errors": errors}
            for name, calls, errors in connection.execute(
                "SELECT tool, SUM(calls) AS c, SUM(errors) FROM tools GROUP BY tool ORDER BY c DESC, tool LIMIT ?",
                (NAMES,),
            )
        ],
        "broken": [
            {"line": number, "why": why}
            for number, why in connection.execute("SELECT n, why FROM broken ORDER BY n LIMIT ?", (NAMES,))
        ],
    }


def interval(connection: sqlite3.Connection, facts: dict[str, Any]) -> dict[str, float | None]:
    """The mean of the groups' means, as `evaluate` has it, with its 95% interval, clustered by group."""
    if (facts.get("scored") or 0) > FEW_SCORES:
        [(count, middle, squares)] = connection.execute(
            "SELECT COUNT(*), AVG(mean), AVG(mean * mean) FROM groups WHERE mean IS NOT NULL"
        ).fetchall()
        half = NORMAL_95 * math.sqrt(max(0.0, squares - middle * middle) / max(1, count - 1))
        return {"mean": middle, "low": middle - half, "high": middle + half}
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
    for place, count in connection.execute(
        "SELECT CAST((score - ?) / ? AS INTEGER) AS place, COUNT(*) FROM rollouts WHERE score IS NOT NULL "
        "GROUP BY place",
        (low, width or 1.0),
    ):
        counts[min(max(place, 0), BINS - 1)] += count
    return {"edges": [low + width * step for step in range(BINS)] + [high], "counts": [int(one) for one in counts]}


def scores_by_item(connection: sqlite3.Connection) -> dict[str, list[float]]:
    """The scores of each item, in order; what a comparison takes."""
    found: dict[str, list[float]] = {}
    for item, score in connection.execute(
        "SELECT g.item_id, r.score FROM rollouts r JOIN groups g ON g.n = r.n >> ? WHERE g.item_id IS NOT NULL "
        "AND r.score IS NOT NULL ORDER BY r.n LIMIT ?",
        (NUMBER_BITS, MOST_SCORES),
    ):
        found.setdefault(item, []).append(score)
    return found


def titles_of(connection: sqlite3.Connection, items: list[str]) -> dict[str, str]:
    marks = ", ".join("?" * len(items))
    sql = f"SELECT item_id, MIN(title) FROM groups WHERE item_id IN ({marks}) GROUP BY item_id"  # noqa: S608
    return dict(connection.execute(sql, items))


def _counted(connection: sqlite3.Connection, column: str, name: str) -> list[dict[str, Any]]:
    rows = connection.execute(
        f"SELECT {column}, COUNT(*) AS c FROM rollouts WHERE {column} IS NOT NULL GROUP BY {column} "  # noqa: S608
        "ORDER BY c DESC, 1 LIMIT ?",
        (NAMES,),
    )
    return [{name: value, "count": count} for value, count in rows]

"""Writes groups into an index: rows, words, sums and the source position, in one transaction.

Always true: the recorded position matches the content exactly, even after `kill -9`.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from hermes_rl.core.group_means import group_mean
from hermes_rl.viewer.sources.jsonl import BrokenLine
from hermes_rl.viewer.summaries import GroupEntry, rollout_number, space_cjk

MAX_BROKEN = 100


def write_entries(connection: sqlite3.Connection, entries: Sequence[GroupEntry | BrokenLine], **facts: Any) -> None:
    """Add the entries; `facts` holds the source position after them."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        _write(connection, entries, facts)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def set_facts(connection: sqlite3.Connection, facts: Iterable[tuple[str, Any]]) -> None:
    connection.executemany("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", facts)


def read_facts(connection: sqlite3.Connection) -> dict[str, Any]:
    return dict(connection.execute("SELECT name, value FROM facts"))


def _write(connection: sqlite3.Connection, entries: Sequence[GroupEntry | BrokenLine], facts: dict[str, Any]) -> None:
    groups = [entry for entry in entries if isinstance(entry, GroupEntry)]
    broken = [entry for entry in entries if isinstance(entry, BrokenLine)]
    connection.executemany(
        "INSERT OR IGNORE INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_group_row, groups)
    )
    rollouts = [(rollout_number(group.number, one.position), one) for group in groups for one in group.rollouts]
    connection.executemany(
        "INSERT OR IGNORE INTO rollouts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (
                number,
                one.position,
                one.index,
                one.score,
                one.failure,
                one.stop_reason,
                one.withheld,
                one.turns,
                sum(tool.calls for tool in one.tools.values()),
                sum(tool.errors for tool in one.tools.values()),
                one.completion_tokens,
                one.seconds,
                one.version_low,
                one.version_high,
                "\n".join(one.tools),
                one.offset,
                one.length,
                one.seat,
                one.branch_of,
                one.branch_turn,
            )
            for number, one in rollouts
        ),
    )
    connection.executemany(
        "INSERT OR IGNORE INTO tools VALUES (?, ?, ?, ?)",
        ((tool, number, *counted) for number, one in rollouts for tool, counted in one.tools.items()),
    )
    connection.executemany(
        "INSERT INTO words (rowid, text) VALUES (?, ?)", ((number, space_cjk(one.words)) for number, one in rollouts)
    )
    connection.executemany("INSERT OR IGNORE INTO broken VALUES (?, ?)", ((one.number, one.why) for one in broken))
    previous = read_facts(connection)
    means = [mean for group in groups if (mean := _mean(group)) is not None]
    added = {
        "groups": len(groups),
        "rollouts": len(rollouts),
        "scored": sum(one.score is not None for _, one in rollouts),
        "scored_groups": len(means),
        "mean_sum": sum(means),
        "failed": sum(one.failure is not None for _, one in rollouts),
        "withheld": sum(group.withheld is not None for group in groups),
        "broken": len(broken),
    }
    latest = {
        name: value
        for group in groups
        for name in ("environment", "model", "created_at")
        if (value := getattr(group, name)) is not None
    }
    sums = {name: (previous.get(name) or 0) + count for name, count in added.items()}
    set_facts(connection, {**latest, **sums, **facts}.items())


def _group_row(group: GroupEntry) -> tuple[Any, ...]:
    scores = [one.score for one in group.rollouts if one.score is not None]
    return (
        group.number,
        group.offset,
        group.length,
        group.id,
        group.item_id,
        group.title,
        group.draw,
        group.split,
        group.created_at,
        group.withheld,
        len(group.rollouts),
        len(scores),
        _mean(group),
        max(scores) - min(scores) if scores else None,
    )


def _mean(group: GroupEntry) -> float | None:
    return group_mean([one.score for one in group.rollouts if one.score is not None])

"""Groups and rollouts as rows of a list.

Always true: a rollout's id is its group's and its position, `12-3`, so a link to it names nothing but numbers.
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_rl.viewer.described import MOST_ROLLOUTS, rollout_number, words_of
from hermes_rl.viewer.index.asking import GroupRow, RolloutRow
from hermes_rl.viewer.reading import ChangedError, Readers
from hermes_rl.viewer.sources.source import Source

ROLLOUT_ID = re.compile(r"(\d{1,14})-(\d{1,5})\Z")
SCORES = 256
AROUND = 80
SNIPPET_SECONDS = 0.08
SNIPPET_BYTES = 8 * 2**20


def rollout_id(row: RolloutRow) -> str:
    return f"{row.group}-{row.position}"


def rollout_of_id(text: str) -> int | None:
    """The number of the rollout that has this id."""
    found = ROLLOUT_ID.match(text)
    if not found or int(found[2]) >= MOST_ROLLOUTS:
        return None
    return rollout_number(int(found[1]), int(found[2]))


def rollout_json(row: RolloutRow, group: GroupRow | None, snippet: str | None = None) -> dict[str, Any]:
    versions = None if row.version_low is None else {"low": row.version_low, "high": row.version_high}
    return {
        "id": rollout_id(row),
        "group_id": str(row.group),
        "index": row.number,
        "item_id": group.item_id if group else None,
        "title": group.title if group else "",
        "score": row.score,
        "failure": row.failure,
        "stop_reason": row.stop_reason,
        "withheld": row.withheld,
        "turns": row.turns,
        "tool_calls": row.tool_calls,
        "tool_errors": row.tool_errors,
        "completion_tokens": row.completion_tokens,
        "seconds": row.seconds,
        "created_at": group.created_at if group else None,
        "tools": row.tools.split("\n") if row.tools else [],
        "version": versions,
        "snippet": snippet,
    }


def group_json(group: GroupRow, rollouts: Sequence[RolloutRow]) -> dict[str, Any]:
    return {
        "id": str(group.n),
        "record_id": group.id,
        "item_id": group.item_id,
        "title": group.title,
        "draw": group.draw,
        "split": group.split,
        "created_at": group.created_at,
        "scores": [row.score for row in rollouts[:SCORES]],
        "mean": group.mean,
        "spread": group.spread,
        "failures": sorted({row.failure for row in rollouts if row.failure}),
        "withheld": group.withheld,
        "rollouts": group.rollouts,
    }


def snippets(
    readers: Readers, source: Source, rows: Sequence[RolloutRow], groups: Mapping[int, GroupRow], words: list[str]
) -> dict[int, str]:
    """The text around the first match of each row, for as many rows as there is time for."""
    found: dict[int, str] = {}
    until, room = time.monotonic() + SNIPPET_SECONDS, SNIPPET_BYTES
    for row in rows:
        group = groups[row.group]
        room -= row.length or group.length
        if not words or room < 0 or time.monotonic() > until:
            break
        try:
            text = words_of(readers.rollout(source, group, row))
        except ChangedError:
            continue
        if shown := around(text, words):
            found[row.n] = shown
    return found


def around(text: str, words: list[str]) -> str | None:
    """The text around the first of the words that stands in it."""
    for word in words:
        ending = "" if word.endswith("*") else r"(?![^\W_])"
        pattern = rf"(?<![^\W_]){re.escape(word.removesuffix('*'))}{ending}"
        if match := re.search(pattern, text, re.IGNORECASE):
            begin, end = max(0, match.start() - AROUND), match.end() + AROUND
            shown = " ".join(text[begin:end].split())
            return f"{'…' if begin else ''}{shown}{'…' if end < len(text) else ''}"
    return None

"""Groups and rollouts as list rows.

Always true: a rollout's id is its group's number and its position, such as `12-3`, so links hold nothing but numbers.
"""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_rl.viewer.index.queries import IndexedGroup, IndexedRollout
from hermes_rl.viewer.record_reader import RecordReader, SourceChangedError
from hermes_rl.viewer.sources.source import RecordSource
from hermes_rl.viewer.summaries import MAX_ROLLOUTS, rollout_number, search_text

ROLLOUT_ID = re.compile(r"(\d{1,14})-(\d{1,5})\Z")
MAX_SCORES = 256
SNIPPET_CHARS = 80
SNIPPET_SECONDS = 0.08
SNIPPET_BYTES = 8 * 2**20


def rollout_id(row: IndexedRollout) -> str:
    return f"{row.group}-{row.position}"


def parse_rollout_id(text: str) -> int | None:
    """The rollout number of an id; None when it is invalid."""
    found = ROLLOUT_ID.match(text)
    if not found or int(found[2]) >= MAX_ROLLOUTS:
        return None
    return rollout_number(int(found[1]), int(found[2]))


def rollout_json(row: IndexedRollout, group: IndexedGroup | None, snippet: str | None = None) -> dict[str, Any]:
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
        "seat": row.seat,
        "snippet": snippet,
    }


def group_json(group: IndexedGroup, rollouts: Sequence[IndexedRollout]) -> dict[str, Any]:
    return {
        "id": str(group.n),
        "record_id": group.id,
        "item_id": group.item_id,
        "title": group.title,
        "draw": group.draw,
        "split": group.split,
        "created_at": group.created_at,
        "scores": [row.score for row in rollouts[:MAX_SCORES]],
        "mean": group.mean,
        "spread": group.spread,
        "failures": sorted({row.failure for row in rollouts if row.failure}),
        "withheld": group.withheld,
        "rollouts": group.rollouts,
    }


def snippets(
    reader: RecordReader,
    source: RecordSource,
    rows: Sequence[IndexedRollout],
    groups: Mapping[int, IndexedGroup],
    words: list[str],
) -> dict[int, str]:
    """The text around the first match of each row, for as many rows as time allows."""
    found: dict[int, str] = {}
    deadline, room = time.monotonic() + SNIPPET_SECONDS, SNIPPET_BYTES
    for row in rows:
        group = groups[row.group]
        room -= row.length or group.length
        if not words or room < 0 or time.monotonic() > deadline:
            break
        try:
            text = search_text(reader.rollout(source, group, row))
        except SourceChangedError:
            continue
        if snippet := find_snippet(text, words):
            found[row.n] = snippet
    return found


def find_snippet(text: str, words: list[str]) -> str | None:
    """The text around the first word that occurs in it."""
    for word in words:
        ending = "" if word.endswith("*") else r"(?![^\W_])"
        pattern = rf"(?<![^\W_]){re.escape(word.removesuffix('*'))}{ending}"
        if match := re.search(pattern, text, re.IGNORECASE):
            begin, end = max(0, match.start() - SNIPPET_CHARS), match.end() + SNIPPET_CHARS
            snippet = " ".join(text[begin:end].split())
            return f"{'…' if begin else ''}{snippet}{'…' if end < len(text) else ''}"
    return None

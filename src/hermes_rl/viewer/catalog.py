"""The catalog of sources by id, with the description that lists show.

Always true: a source is looked up by a discovered id, never by a path; discovery repeats every few seconds, so that new
runs and evaluations appear by themselves.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from hermes_rl.core.group_means import GroupMeans
from hermes_rl.viewer.index_cache import IndexProgress
from hermes_rl.viewer.sources.discover import find_sources
from hermes_rl.viewer.sources.source import RecordSource, RunAccess

REFRESH_SECONDS = 2.0


class NotFoundError(Exception):
    """No such source, group or rollout."""


class Catalog:
    """The sources of the targets, or everything in the home when there are none."""

    def __init__(self, targets: Sequence[str], known_runs: RunAccess) -> None:
        self._targets = tuple(targets)
        self._runs = known_runs
        self._lock = Lock()
        self._found: dict[str, RecordSource] = {}
        self._found_at = 0.0
        self._run_rows: dict[str, Mapping[str, Any]] = {}

    def sources(self) -> list[RecordSource]:
        with self._lock:
            if time.monotonic() - self._found_at > REFRESH_SECONDS or not self._found_at:
                self._run_rows = {str(row["run_id"]): row for row in self._runs.listed()}
                self._found = {source.id: source for source in find_sources(self._targets, self._runs)}
                self._found_at = time.monotonic()
            return list(self._found.values())

    def source(self, name: str) -> RecordSource:
        if name not in self._found:
            self.sources()
        with self._lock:
            if name not in self._found:
                raise NotFoundError("there is no run, evaluation or file with this id")
            return self._found[name]

    def describe(
        self, source: RecordSource, facts: Mapping[str, Any], progress: IndexProgress | None, problem: str | None
    ) -> dict[str, Any]:
        run = self._run_rows.get(source.run_id or "", {})
        means = GroupMeans(facts.get("scored_groups") or 0, facts.get("mean_sum") or 0.0)
        at = source.updated_at
        return {
            "id": source.id,
            "kind": source.kind,
            "name": source.name,
            "state": run.get("status"),
            "environment": facts.get("environment") or run.get("environment"),
            "model": facts.get("model"),
            "groups": facts.get("groups"),
            "rollouts": facts.get("rollouts"),
            "reward_mean": means.mean,
            "updated_at": None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds"),
            "indexing": None if progress is None else {"done_bytes": progress.done, "total_bytes": progress.total},
            "problem": problem or _problem(source, facts),
        }


def _problem(source: RecordSource, facts: Mapping[str, Any]) -> str | None:
    if not source.available:
        return "no groups yet"
    broken = facts.get("broken") or 0
    noun = "group" if source.store else "line"
    return f"{broken:,} {noun}{'' if broken == 1 else 's'} could not be read" if broken else None

"""What there is to look at: sources by their ids, each with what a list says of it.

Always true: a source is only given by an id that was found before, never by a path; what was found is looked for again
after a moment, so that a new run or evaluation comes into the list by itself.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from hermes_rl.viewer.keeping import Progress
from hermes_rl.viewer.sources.finding import find_sources
from hermes_rl.viewer.sources.source import Runs, Source

FOUND_SECONDS = 2.0


class NotThereError(Exception):
    """There is no such source, group or rollout."""


class Catalog:
    """The sources of the targets, or all that the home holds when there is none."""

    def __init__(self, targets: Sequence[str], known_runs: Runs) -> None:
        self._targets = tuple(targets)
        self._runs = known_runs
        self._lock = Lock()
        self._found: dict[str, Source] = {}
        self._found_at = 0.0
        self._run_rows: dict[str, Mapping[str, Any]] = {}

    def sources(self) -> list[Source]:
        with self._lock:
            if time.monotonic() - self._found_at > FOUND_SECONDS or not self._found_at:
                self._run_rows = {str(row["run_id"]): row for row in self._runs.listed()}
                self._found = {source.id: source for source in find_sources(self._targets, self._runs)}
                self._found_at = time.monotonic()
            return list(self._found.values())

    def source(self, name: str) -> Source:
        if name not in self._found:
            self.sources()
        with self._lock:
            if name not in self._found:
                raise NotThereError("there is no source of this id")
            return self._found[name]

    def told(
        self, source: Source, facts: Mapping[str, Any], progress: Progress | None, problem: str | None
    ) -> dict[str, Any]:
        run = self._run_rows.get(source.run_id or "", {})
        scored = facts.get("scored_groups") or 0
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
            "reward_mean": (facts.get("mean_sum") or 0.0) / scored if scored else None,
            "updated_at": None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds"),
            "indexing": None if progress is None else {"done_bytes": progress.done, "total_bytes": progress.total},
            "problem": problem or _problem(source, facts),
        }


def _problem(source: Source, facts: Mapping[str, Any]) -> str | None:
    if not source.there:
        return "it holds no groups yet"
    broken = facts.get("broken") or 0
    noun = "group" if source.store else "line"
    return f"{broken:,} {noun}{'' if broken == 1 else 's'} could not be read" if broken else None

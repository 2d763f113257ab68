"""The viewer without its web server.

Always true: results are plain JSON values of bounded size.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from hermes_rl.viewer.catalog import Catalog
from hermes_rl.viewer.index import queries
from hermes_rl.viewer.index.queries import RolloutFilter
from hermes_rl.viewer.index.schema import delete_unused
from hermes_rl.viewer.index_cache import IndexCache
from hermes_rl.viewer.record_queries import RecordQueries
from hermes_rl.viewer.record_reader import RecordReader
from hermes_rl.viewer.responses import rows
from hermes_rl.viewer.source_queries import SourceQueries
from hermes_rl.viewer.sources.source import RecordSource, RunAccess
from hermes_rl.viewer.token_text import TokenTexts


class ViewerService:
    """Queries about the targets, or about everything in the home when there are none. Thread-safe.

    Lists are here; `overviews` covers whole sources, `records` single groups and rollouts.
    """

    def __init__(self, targets: Sequence[str], known_runs: RunAccess, token_texts: TokenTexts | None = None) -> None:
        self._catalog = Catalog(targets, known_runs)
        self._reader = RecordReader()
        self._indexes = IndexCache(self._reader)
        self.overviews = SourceQueries(self._catalog, self._indexes, self._reader, known_runs)
        self.records = RecordQueries(
            self._catalog, self._indexes, self._reader, token_texts or TokenTexts(), known_runs
        )
        delete_unused()

    def close(self) -> None:
        self._indexes.close()
        self._reader.close()

    def find(self) -> None:
        """Discover the sources; ConfigError when a target does not exist."""
        self._catalog.sources()

    def complete(self, on_progress: Callable[[int, int], object]) -> list[RecordSource]:
        """Index all sources completely; later queries see this state."""
        sources = self._catalog.sources()
        self._indexes.build(sources, on_progress)
        return sources

    def spread(self, name: str, count: int) -> list[str]:
        """The ids of up to `count` groups, evenly spaced from the first to the last."""
        with self._indexes.open_index(self._catalog.source(name)) as index:
            return [str(number) for number in queries.evenly_spaced_groups(index.connection, count)]

    def groups(self, name: str, *, sort: str, after: str | None, limit: int, step: int | None = None) -> dict[str, Any]:
        """A page of groups; with `step`, those that this training step used."""
        source = self._catalog.source(name)
        with self._indexes.open_index(source) as index:
            if step is None:
                page = queries.list_groups(index.connection, sort=sort, after=after, limit=limit)
            else:
                found = queries.find_groups(index.connection, self.records.step_groups(source, step))
                page = queries.RowPage([found[number] for number in sorted(found)], None, len(found))
            group_rows = [
                rows.group_json(group, queries.group_rollouts(index.connection, group.n, rows.MAX_SCORES))
                for group in page.rows
            ]
        uses = self.records.uses(source, [group.n for group in page.rows])
        group_rows = [row | {"use": uses.get(group.n)} for row, group in zip(group_rows, page.rows, strict=True)]
        return {"rows": group_rows, "next": page.next, "total": page.total}

    def rollouts(
        self, name: str, filters: RolloutFilter, *, sort: str, after: str | None, limit: int
    ) -> dict[str, Any]:
        began = time.perf_counter()
        source = self._catalog.source(name)
        with self._indexes.open_index(source) as index:
            page = queries.list_rollouts(index.connection, filters, sort=sort, after=after, limit=limit)
            groups = queries.find_groups(index.connection, list({row.group for row in page.rows}))
        snippets = rows.snippets(self._reader, source, page.rows, groups, queries.search_words(filters.text))
        return {
            "rows": [rows.rollout_json(row, groups.get(row.group), snippets.get(row.n)) for row in page.rows],
            "next": page.next,
            "total": page.total,
            "took_ms": round((time.perf_counter() - began) * 1000, 1),
        }

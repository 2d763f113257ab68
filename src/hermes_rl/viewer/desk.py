"""The viewer without its web server: what there is to look at, and who answers which question about it.

Always true: answers are plain values for JSON, and each is bounded.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from hermes_rl.viewer.answers import rows
from hermes_rl.viewer.catalog import Catalog
from hermes_rl.viewer.index import asking
from hermes_rl.viewer.index.asking import Wanted
from hermes_rl.viewer.index.schema import forget_unused
from hermes_rl.viewer.keeping import Indexes
from hermes_rl.viewer.overviews import Overviews
from hermes_rl.viewer.pieces import Pieces
from hermes_rl.viewer.reading import Readers
from hermes_rl.viewer.records import Records
from hermes_rl.viewer.sources.source import Runs, Source


class Desk:
    """Answers about the targets, or about all that the home holds when there is none. Called from several threads.

    Lists are here; `overviews` are of whole sources, `records` of one group or rollout.
    """

    def __init__(self, targets: Sequence[str], known_runs: Runs, pieces: Pieces | None = None) -> None:
        self._catalog = Catalog(targets, known_runs)
        self._readers = Readers()
        self._indexes = Indexes(self._readers)
        self.overviews = Overviews(self._catalog, self._indexes, self._readers, known_runs)
        self.records = Records(self._catalog, self._indexes, self._readers, pieces or Pieces())
        forget_unused()

    def close(self) -> None:
        self._indexes.close()
        self._readers.close()

    def find(self) -> None:
        """Look for the sources; ConfigError when what was named is not there."""
        self._catalog.sources()

    def complete(self, on_progress: Callable[[int, int], object]) -> list[Source]:
        """The sources, all of them indexed to their ends; later answers are of this moment."""
        sources = self._catalog.sources()
        self._indexes.complete(sources, on_progress)
        return sources

    def spread(self, name: str, count: int) -> list[str]:
        """The ids of so many groups, evenly from the first to the last."""
        with self._indexes.reading(self._catalog.source(name)) as index:
            return [str(number) for number in asking.spread_groups(index.connection, count)]

    def groups(self, name: str, *, sort: str, after: str | None, limit: int) -> dict[str, Any]:
        with self._indexes.reading(self._catalog.source(name)) as index:
            page = asking.list_groups(index.connection, sort=sort, after=after, limit=limit)
            told = [
                rows.group_json(group, asking.rollouts_of(index.connection, group.n, rows.SCORES))
                for group in page.rows
            ]
        return {"rows": told, "next": page.next, "total": page.total}

    def rollouts(self, name: str, wanted: Wanted, *, sort: str, after: str | None, limit: int) -> dict[str, Any]:
        began = time.perf_counter()
        source = self._catalog.source(name)
        with self._indexes.reading(source) as index:
            page = asking.list_rollouts(index.connection, wanted, sort=sort, after=after, limit=limit)
            groups = asking.find_groups(index.connection, list({row.group for row in page.rows}))
        shown = rows.snippets(self._readers, source, page.rows, groups, asking.words_of(wanted.text))
        return {
            "rows": [rows.rollout_json(row, groups.get(row.group), shown.get(row.n)) for row in page.rows],
            "next": page.next,
            "total": page.total,
            "took_ms": round((time.perf_counter() - began) * 1000, 1),
        }

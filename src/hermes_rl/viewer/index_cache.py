"""Read access to the indexes of a viewer.

Always true: readers never wait for an index; until there is one, a preview of the first groups takes its place, and
when that covers the whole source no index is needed.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from hermes_rl.core.errors import HermesRLError
from hermes_rl.viewer.index.build_sync import build_index
from hermes_rl.viewer.index.schema import index_path, open_for_reading, open_in_memory
from hermes_rl.viewer.index.update import matches_file, preview_file, preview_store
from hermes_rl.viewer.index.writer import read_facts
from hermes_rl.viewer.indexers import Indexers
from hermes_rl.viewer.record_reader import RecordReader
from hermes_rl.viewer.sources.source import RecordSource

MAX_PREVIEWS = 8


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """The progress of an index, in bytes of a file or places of a store."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class OpenIndex:
    """An open index. `progress` is None when it covers the whole source."""

    connection: sqlite3.Connection
    facts: dict[str, Any]
    progress: IndexProgress | None
    generation: tuple[Any, ...]
    """Changes with the content."""


@dataclass(frozen=True, slots=True)
class _Preview:
    """An index of the first groups of a source, valid for this `key`."""

    key: Any
    content: bytes
    facts: dict[str, Any]


class IndexCache:
    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader
        self._follow = True
        self._indexers = Indexers(self._is_complete)
        self._previews: dict[Path, _Preview] = {}
        self._lock = Lock()

    def close(self) -> None:
        self._indexers.close()

    def build(self, sources: Sequence[RecordSource], on_progress: Callable[[int, int], object]) -> None:
        """Build the indexes completely, in this process, and stop following the sources."""
        self._follow = False
        for source in sources:
            build_index(source, self._reader.store(source.store) if source.store else None, on_progress)

    @contextmanager
    def open_index(self, source: RecordSource) -> Iterator[OpenIndex]:
        """The index of a source as far as it is built; a process continues building it."""
        path = index_path(source.identity)
        connection = open_for_reading(path)
        facts = self._facts(connection, source)
        progress = self._progress(source, facts)
        if connection is not None and not _has_rows(facts):
            connection.close()
            connection = None
        if progress is not None and self._follow:
            self._indexers.ensure_running(path, source)
        if connection is None:
            head = self._preview(path, source) if progress is not None else None
            connection = open_in_memory(head.content if head else None)
            facts = head.facts if head else {}
            progress = self._progress(source, facts) and progress
        try:
            yield OpenIndex(
                connection, facts, progress, (str(path), facts.get("seen"), facts.get("done"), facts.get("reached"))
            )
        finally:
            connection.close()

    def peek(self, source: RecordSource) -> tuple[dict[str, Any], IndexProgress | None]:
        """What is known of a source without any slow access."""
        facts = self._indexed_facts(source) or self._preview_facts(source)
        known = source.file is not None or self._indexers.is_running(index_path(source.identity))
        try:
            return facts, self._progress(source, facts) if known and facts else None
        except HermesRLError:
            return facts, None

    def problem(self, source: RecordSource) -> str | None:
        """Why the index cannot be built."""
        return self._indexers.problem(index_path(source.identity))

    def _indexed_facts(self, source: RecordSource) -> dict[str, Any]:
        connection = open_for_reading(index_path(source.identity))
        try:
            return self._facts(connection, source)
        finally:
            if connection is not None:
                connection.close()

    def _preview_facts(self, source: RecordSource) -> dict[str, Any]:
        """The facts of a file that its preview covers completely."""
        with self._lock:
            head = self._previews.get(index_path(source.identity))
        fits = head is not None and source.file is not None and head.key == source.updated_at
        return head.facts if head and fits and self._progress(source, head.facts) is None else {}

    def _is_complete(self, source: RecordSource) -> bool:
        try:
            return self._progress(source, self._indexed_facts(source)) is None
        except HermesRLError:
            return False

    def _facts(self, connection: sqlite3.Connection | None, source: RecordSource) -> dict[str, Any]:
        if connection is None:
            return {}
        try:
            facts = read_facts(connection)
        except sqlite3.Error:
            return {}
        return facts if source.file is None or matches_file(facts, source.file) else {}

    def _progress(self, source: RecordSource, facts: dict[str, Any]) -> IndexProgress | None:
        if not source.available:
            return None
        if source.store is not None:
            newest, reached = self._reader.store(source.store).newest(), facts.get("reached")
            return None if reached is not None and reached >= newest else IndexProgress(reached or 0, newest)
        try:
            size = source.file.stat().st_size if source.file else 0
        except OSError:
            return None
        whole = facts.get("seen") == size or facts.get("done") == size
        return None if whole else IndexProgress(facts.get("done") or 0, size)

    def _preview(self, path: Path, source: RecordSource) -> _Preview | None:
        with self._lock:
            cached = self._previews.get(path)
        key = source.updated_at if source.file else self._reader.store(source.store or "").newest()
        if cached and cached.key == key:
            return cached
        try:
            made = preview_file(source.file) if source.file else preview_store(self._reader.store(source.store or ""))
        except (OSError, HermesRLError):
            return None
        with closing(open_in_memory(made)) as connection:
            head = _Preview(key, made, read_facts(connection))
        with self._lock:
            self._previews[path] = head
            while len(self._previews) > MAX_PREVIEWS:
                self._previews.pop(next(iter(self._previews)))
        return head


def _has_rows(facts: dict[str, Any]) -> bool:
    return bool(facts.get("groups") or facts.get("broken"))

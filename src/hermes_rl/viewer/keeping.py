"""The indexes of a viewer, opened to read.

Always true: whoever reads waits for no index; while there is none yet, the beginning of the source stands in for it,
and where that is all of it nothing is left to be read.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from hermes_rl.errors import HermesRLError
from hermes_rl.viewer.index.building import belongs, head_of_file, head_of_store
from hermes_rl.viewer.index.completing import complete
from hermes_rl.viewer.index.schema import in_memory, index_path, open_reading
from hermes_rl.viewer.index.writing import read_facts
from hermes_rl.viewer.indexers import Indexers
from hermes_rl.viewer.reading import Readers
from hermes_rl.viewer.sources.source import Source

HEADS = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an index is, in bytes of a file or in places of a store."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Open:
    """An index to ask. `progress` is None when it holds the whole source."""

    connection: sqlite3.Connection
    facts: dict[str, Any]
    progress: Progress | None
    generation: tuple[Any, ...]
    """Changes with what it holds."""


@dataclass(frozen=True, slots=True)
class _Head:
    """An index of the beginning of a source, as it was when it had this `key`."""

    key: Any
    content: bytes
    facts: dict[str, Any]


class Indexes:
    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._following = True
        self._indexers = Indexers(self._whole)
        self._heads: dict[Path, _Head] = {}
        self._lock = Lock()

    def close(self) -> None:
        self._indexers.close()

    def complete(self, sources: Sequence[Source], on_progress: Callable[[int, int], object]) -> None:
        """Bring the indexes up to their sources here and now, and follow these no further."""
        self._following = False
        for source in sources:
            complete(source, self._readers.of(source.store) if source.store else None, on_progress)

    @contextmanager
    def reading(self, source: Source) -> Iterator[Open]:
        """The index of a source as far as it is; a process goes on with it."""
        path = index_path(source.identity)
        connection = open_reading(path)
        facts = self._facts(connection, source)
        progress = self._progress(source, facts)
        if connection is not None and not _sound(facts):
            connection.close()
            connection = None
        if progress is not None and self._following:
            self._indexers.go_on(path, source)
        if connection is None:
            head = self._head(path, source) if progress is not None else None
            connection = in_memory(head.content if head else None)
            facts = head.facts if head else {}
            progress = self._progress(source, facts) and progress
        try:
            yield Open(
                connection, facts, progress, (str(path), facts.get("seen"), facts.get("done"), facts.get("reached"))
            )
        finally:
            connection.close()

    def glance(self, source: Source) -> tuple[dict[str, Any], Progress | None]:
        """What is known of a source without asking it anything that could take time."""
        facts = self._known(source) or self._short(source)
        known = source.file is not None or self._indexers.working(index_path(source.identity))
        try:
            return facts, self._progress(source, facts) if known and facts else None
        except HermesRLError:
            return facts, None

    def problem(self, source: Source) -> str | None:
        """Why its index cannot be made."""
        return self._indexers.problem(index_path(source.identity))

    def _known(self, source: Source) -> dict[str, Any]:
        connection = open_reading(index_path(source.identity))
        try:
            return self._facts(connection, source)
        finally:
            if connection is not None:
                connection.close()

    def _short(self, source: Source) -> dict[str, Any]:
        """Of a file that was short enough to be read at once, until it has an index."""
        with self._lock:
            head = self._heads.get(index_path(source.identity))
        fits = head is not None and source.file is not None and head.key == source.updated_at
        return head.facts if head and fits and self._progress(source, head.facts) is None else {}

    def _whole(self, source: Source) -> bool:
        try:
            return self._progress(source, self._known(source)) is None
        except HermesRLError:
            return False

    def _facts(self, connection: sqlite3.Connection | None, source: Source) -> dict[str, Any]:
        if connection is None:
            return {}
        try:
            facts = read_facts(connection)
        except sqlite3.Error:
            return {}
        return facts if source.file is None or belongs(facts, source.file) else {}

    def _progress(self, source: Source, facts: dict[str, Any]) -> Progress | None:
        if not source.there:
            return None
        if source.store is not None:
            newest, reached = self._readers.of(source.store).newest(), facts.get("reached")
            return None if reached is not None and reached >= newest else Progress(reached or 0, newest)
        try:
            size = source.file.stat().st_size if source.file else 0
        except OSError:
            return None
        whole = facts.get("seen") == size or facts.get("done") == size
        return None if whole else Progress(facts.get("done") or 0, size)

    def _head(self, path: Path, source: Source) -> _Head | None:
        with self._lock:
            kept = self._heads.get(path)
        key = source.updated_at if source.file else self._readers.of(source.store or "").newest()
        if kept and kept.key == key:
            return kept
        try:
            made = head_of_file(source.file) if source.file else head_of_store(self._readers.of(source.store or ""))
        except (OSError, HermesRLError):
            return None
        with closing(in_memory(made)) as connection:
            head = _Head(key, made, read_facts(connection))
        with self._lock:
            self._heads[path] = head
            while len(self._heads) > HEADS:
                self._heads.pop(next(iter(self._heads)))
        return head


def _sound(facts: dict[str, Any]) -> bool:
    """Whether there is something in it."""
    return bool(facts.get("groups") or facts.get("broken"))

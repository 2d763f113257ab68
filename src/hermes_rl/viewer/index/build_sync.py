"""Builds a complete index in the calling process, for reports.

Always true: on return the index holds everything that the source held at the call. Of several processes on one index
one writes, and the others wait for it.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing

from hermes_rl.core.errors import ConfigError
from hermes_rl.store.database.reader import StoreReader
from hermes_rl.viewer.index.lock import try_lock
from hermes_rl.viewer.index.schema import index_path, indexes_home, open_for_reading, open_for_writing
from hermes_rl.viewer.index.update import index_file, index_store
from hermes_rl.viewer.index.writer import read_facts
from hermes_rl.viewer.sources.source import RecordSource

POLL_SECONDS = 0.1


def build_index(source: RecordSource, reader: StoreReader | None, on_progress: Callable[[int, int], object]) -> None:
    """Progress is in bytes of a file or positions of a store. ConfigError when the index cannot be built."""
    if not source.available:
        return
    try:
        _build(source, reader, on_progress)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(
            f"{source.name} cannot be indexed: {error}; check that it is readable and {indexes_home()} is writable"
        ) from error


def _build(source: RecordSource, reader: StoreReader | None, on_progress: Callable[[int, int], object]) -> None:
    path = index_path(source.identity)
    goal = reader.newest() if reader else source.file.stat().st_size if source.file else 0
    while True:
        with try_lock(path.with_suffix(".lock")) as mine:
            if mine:
                with closing(open_for_writing(path)) as connection:
                    while _index_batch(connection, source, reader) and _position(connection) < goal:
                        on_progress(_position(connection), goal)
                return
        index = open_for_reading(path)
        if index is not None:
            with closing(index):
                if _position(index) >= goal:
                    return
        time.sleep(POLL_SECONDS)


def _index_batch(connection: sqlite3.Connection, source: RecordSource, reader: StoreReader | None) -> bool:
    if reader is not None:
        return index_store(connection, reader, batches=1)
    return source.file is not None and index_file(connection, source.file, batches=1)


def _position(connection: sqlite3.Connection) -> int:
    facts = read_facts(connection)
    return max(facts.get(name) or 0 for name in ("done", "seen", "reached"))

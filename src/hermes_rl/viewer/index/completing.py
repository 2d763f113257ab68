"""An index made whole by the one who asks for it, as a report does that has no time to look again.

Always true: when it returns, the index holds what the source held when it was called. Of several who work on one index
one writes, and the others wait for it.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing

from hermes_rl.errors import ConfigError
from hermes_rl.store.database.reading import StoreReader
from hermes_rl.viewer.index.building import index_file, index_store
from hermes_rl.viewer.index.locking import held
from hermes_rl.viewer.index.schema import index_path, indexes_home, open_reading, open_writing
from hermes_rl.viewer.index.writing import read_facts
from hermes_rl.viewer.sources.source import Source

PAUSE = 0.1


def complete(source: Source, reader: StoreReader | None, on_progress: Callable[[int, int], object]) -> None:
    """Told is how far it is, in bytes of a file or in places of a store. ConfigError when it cannot be made."""
    if not source.there:
        return
    try:
        _complete(source, reader, on_progress)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(
            f"{source.name} cannot be read into an index: {error}; look whether it and {indexes_home()} can be opened"
        ) from error


def _complete(source: Source, reader: StoreReader | None, on_progress: Callable[[int, int], object]) -> None:
    path = index_path(source.identity)
    goal = reader.newest() if reader else source.file.stat().st_size if source.file else 0
    while True:
        with held(path.with_suffix(".lock")) as mine:
            if mine:
                with closing(open_writing(path)) as connection:
                    while _batch(connection, source, reader) and _reached(connection) < goal:
                        on_progress(_reached(connection), goal)
                return
        others = open_reading(path)
        if others is not None:
            with closing(others):
                if _reached(others) >= goal:
                    return
        time.sleep(PAUSE)


def _batch(connection: sqlite3.Connection, source: Source, reader: StoreReader | None) -> bool:
    if reader is not None:
        return index_store(connection, reader, batches=1)
    return source.file is not None and index_file(connection, source.file, batches=1)


def _reached(connection: sqlite3.Connection) -> int:
    facts = read_facts(connection)
    return max(facts.get(name) or 0 for name in ("done", "seen", "reached"))

"""Bringing an index up to its source: from where it ended, in batches, for as long as the source grows.

Always true: an index that does not belong to what the source now holds is emptied first; the first batch is small, so
that rows are there at once.
"""

import hashlib
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from hermes_rl.store.database.reading import StoreReader
from hermes_rl.viewer.described import GroupEntry
from hermes_rl.viewer.index.schema import create, in_memory
from hermes_rl.viewer.index.writing import read_facts, set_facts, write
from hermes_rl.viewer.sources import stored
from hermes_rl.viewer.sources.lines import Broken, entry_of, read_lines

HEAD = 4_096
HEAD_GROUPS = 50
HEAD_BYTES = 2 * 2**20
BATCH_GROUPS = 500
BATCH_BYTES = 8 * 2**20
BATCH_SECONDS = 2.0
PLACES = 500
# A transaction of PostgreSQL may take so long from the place it gives a group to its commit.
SETTLED_SECONDS = 90.0


class Batch:
    """Entries that wait to be written together."""

    def __init__(self, *, first: bool) -> None:
        self.entries: list[GroupEntry | Broken] = []
        self._bytes = 0
        self._began = time.monotonic()
        self._most = (HEAD_GROUPS, HEAD_BYTES) if first else (BATCH_GROUPS, BATCH_BYTES)

    def add(self, entry: GroupEntry | Broken, size: int) -> bool:
        """Whether it is full."""
        self.entries.append(entry)
        self._bytes += size
        groups, most = self._most
        full = len(self.entries) >= groups or self._bytes >= most
        return full or time.monotonic() - self._began > BATCH_SECONDS


def index_file(connection: sqlite3.Connection, path: Path, *, batches: int | None = None) -> bool:
    """Index what is new in the file; whether there was anything."""
    facts = read_facts(connection)
    if facts and not belongs(facts, path):
        empty(connection)
        facts = {}
    done, lines = facts.get("done") or 0, facts.get("lines") or 0
    mark = {} if facts else _mark(path)
    size = path.stat().st_size
    batch = Batch(first=not facts)
    new = False

    def flush() -> None:
        nonlocal batch, new, mark
        write(connection, batch.entries, done=done, lines=lines, tail=_tail(path, done), **mark)
        batch, new, mark = Batch(first=False), True, {}

    for line in read_lines(path, done, lines):
        done, lines = line.offset + line.length, line.number
        if batch.add(entry_of(line), line.length):
            flush()
            if batches is not None and (batches := batches - 1) <= 0:
                return True
    if batch.entries or mark:
        flush()
    # A torn line at the end is no work left to do.
    seen = max(size, done)
    if seen != facts.get("seen"):
        set_facts(connection, [("seen", seen)])
    return new


def index_store(connection: sqlite3.Connection, reader: StoreReader, *, batches: int | None = None) -> bool:
    """Index what is new in the store; whether there was anything."""
    facts = read_facts(connection)
    known = set(facts)
    newest = reader.newest()
    if newest < (facts.get("reached") or 0):
        # Another database took its place.
        empty(connection)
        facts, known = {}, set()
    settled, reached = facts.get("settled") or 0, facts.get("reached") or 0
    batch = Batch(first=not known)
    new = False
    after = settled
    while places := reader.places(after, PLACES):
        after = places[-1].place
        there = _there(connection, places[0].place, after)
        for kept in places:
            if kept.arrived_at < time.time() - SETTLED_SECONDS:
                settled = kept.place
            if kept.place in there:
                continue
            reached = max(reached, kept.place)
            full = batch.add(stored.entry_of(kept.place, reader.data(kept.place)), kept.bytes)
            if full or kept.place == after:
                write(connection, batch.entries, settled=settled, reached=reached)
                batch, new = Batch(first=False), True
                if batches is not None and (batches := batches - 1) <= 0:
                    return True
    if batch.entries or not facts or settled != facts.get("settled"):
        write(connection, batch.entries, settled=settled, reached=reached)
    return new


def head_of_file(path: Path) -> bytes:
    """An index of the first groups only, to be shown while the whole one is made."""
    with closing(in_memory()) as connection:
        index_file(connection, path, batches=1)
        return connection.serialize()


def head_of_store(reader: StoreReader) -> bytes:
    with closing(in_memory()) as connection:
        index_store(connection, reader, batches=1)
        return connection.serialize()


def belongs(facts: dict[str, Any], path: Path) -> bool:
    """Whether the index was made of the file that is there now, which has at most grown since."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = hashlib.sha256(file.read(facts.get("head_length") or 0)).hexdigest()
    except OSError:
        return False
    done = facts.get("done") or 0
    return size >= done and head == facts.get("head") and _tail(path, done) == facts.get("tail")


def empty(connection: sqlite3.Connection) -> None:
    tables = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if name == "words" or not name.startswith(("sqlite_", "words_"))
    ]
    for name in tables:
        connection.execute(f"DROP TABLE {name}")
    create(connection)


def _mark(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        head = file.read(HEAD)
    return {"head": hashlib.sha256(head).hexdigest(), "head_length": len(head)}


def _tail(path: Path, end: int) -> str:
    with path.open("rb") as file:
        file.seek(max(0, end - HEAD))
        return hashlib.sha256(file.read(min(end, HEAD))).hexdigest()


def _there(connection: sqlite3.Connection, first: int, last: int) -> set[int]:
    found = connection.execute(
        "SELECT n FROM groups WHERE n BETWEEN ? AND ? UNION ALL SELECT n FROM broken WHERE n BETWEEN ? AND ?",
        (first, last) * 2,
    )
    return {number for (number,) in found}

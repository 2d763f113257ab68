"""Updates an index from its source: incrementally, in batches.

Always true: an index that does not match the source's current content is emptied first; the first batch is small, so
that rows appear immediately.
"""

import hashlib
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from hermes_rl.store.database.reader import StoreReader
from hermes_rl.viewer.index.schema import create_tables, open_in_memory
from hermes_rl.viewer.index.writer import read_facts, set_facts, write_entries
from hermes_rl.viewer.sources import trajectory_db
from hermes_rl.viewer.sources.jsonl import BrokenLine, index_entry, read_lines
from hermes_rl.viewer.summaries import GroupEntry

HASHED_BYTES = 4_096
FIRST_GROUPS = 50
FIRST_BYTES = 2 * 2**20
BATCH_GROUPS = 500
BATCH_BYTES = 8 * 2**20
BATCH_SECONDS = 2.0
READ_GROUPS = 500
# PostgreSQL may take this long between assigning a group's position and committing it, so positions can appear out of
# order.
SETTLED_SECONDS = 90.0


class IndexBatch:
    """Entries to write in one transaction."""

    def __init__(self, *, first: bool) -> None:
        self.entries: list[GroupEntry | BrokenLine] = []
        self._bytes = 0
        self._began = time.monotonic()
        self._limits = (FIRST_GROUPS, FIRST_BYTES) if first else (BATCH_GROUPS, BATCH_BYTES)

    def add(self, entry: GroupEntry | BrokenLine, size: int) -> bool:
        """Add an entry; whether the batch is full."""
        self.entries.append(entry)
        self._bytes += size
        max_groups, max_bytes = self._limits
        full = len(self.entries) >= max_groups or self._bytes >= max_bytes
        return full or time.monotonic() - self._began > BATCH_SECONDS


def index_file(connection: sqlite3.Connection, path: Path, *, batches: int | None = None) -> bool:
    """Index what is new in the file; whether there was anything."""
    facts = read_facts(connection)
    if facts and not matches_file(facts, path):
        reset_index(connection)
        facts = {}
    done, lines = facts.get("done") or 0, facts.get("lines") or 0
    mark = {} if facts else _head_facts(path)
    size = path.stat().st_size
    batch = IndexBatch(first=not facts)
    new = False

    def flush() -> None:
        nonlocal batch, new, mark
        write_entries(connection, batch.entries, done=done, lines=lines, tail=_tail_hash(path, done), **mark)
        batch, new, mark = IndexBatch(first=False), True, {}

    for line in read_lines(path, done, lines):
        done, lines = line.offset + line.length, line.number
        if batch.add(index_entry(line), line.length):
            flush()
            if batches is not None and (batches := batches - 1) <= 0:
                return True
    if batch.entries or mark:
        flush()
    # A torn last line does not count as pending work.
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
        # It is another database now.
        reset_index(connection)
        facts, known = {}, set()
    settled, reached = facts.get("settled") or 0, facts.get("reached") or 0
    batch = IndexBatch(first=not known)
    new = False
    after = settled
    while locations := reader.groups_after(after, READ_GROUPS):
        after = locations[-1].place
        indexed = _indexed_numbers(connection, locations[0].place, after)
        for kept in locations:
            if kept.arrived_at < time.time() - SETTLED_SECONDS:
                settled = kept.place
            if kept.place in indexed:
                continue
            reached = max(reached, kept.place)
            full = batch.add(trajectory_db.index_entry(kept.place, reader.data(kept.place)), kept.bytes)
            if full or kept.place == after:
                write_entries(connection, batch.entries, settled=settled, reached=reached)
                batch, new = IndexBatch(first=False), True
                if batches is not None and (batches := batches - 1) <= 0:
                    return True
    if batch.entries or not facts or settled != facts.get("settled"):
        write_entries(connection, batch.entries, settled=settled, reached=reached)
    return new


def preview_file(path: Path) -> bytes:
    """An index of the first groups only, to show while the full one is built."""
    with closing(open_in_memory()) as connection:
        index_file(connection, path, batches=1)
        return connection.serialize()


def preview_store(reader: StoreReader) -> bytes:
    with closing(open_in_memory()) as connection:
        index_store(connection, reader, batches=1)
        return connection.serialize()


def matches_file(facts: dict[str, Any], path: Path) -> bool:
    """Whether the index was built from this file, which has at most grown since."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = hashlib.sha256(file.read(facts.get("head_length") or 0)).hexdigest()
    except OSError:
        return False
    done = facts.get("done") or 0
    return size >= done and head == facts.get("head") and _tail_hash(path, done) == facts.get("tail")


def reset_index(connection: sqlite3.Connection) -> None:
    tables = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if name == "words" or not name.startswith(("sqlite_", "words_"))
    ]
    for name in tables:
        connection.execute(f"DROP TABLE {name}")
    create_tables(connection)


def _head_facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        head = file.read(HASHED_BYTES)
    return {"head": hashlib.sha256(head).hexdigest(), "head_length": len(head)}


def _tail_hash(path: Path, end: int) -> str:
    with path.open("rb") as file:
        file.seek(max(0, end - HASHED_BYTES))
        return hashlib.sha256(file.read(min(end, HASHED_BYTES))).hexdigest()


def _indexed_numbers(connection: sqlite3.Connection, first: int, last: int) -> set[int]:
    found = connection.execute(
        "SELECT n FROM groups WHERE n BETWEEN ? AND ? UNION ALL SELECT n FROM broken WHERE n BETWEEN ? AND ?",
        (first, last) * 2,
    )
    return {number for (number,) in found}

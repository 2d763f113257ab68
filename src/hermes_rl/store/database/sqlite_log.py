"""The file of SQLite and its log: how connections to it are opened, and the thread that copies the log into it.

Always true: a connection writes to disk before it says that it wrote; nobody waits for the thread.
"""

import sqlite3
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

# Larger pages and fewer checkpoints: blobs of a megabyte are written a third faster than with the defaults.
PAGE = 16_384
# Copying takes a fifth of a write. The thread does it while the next groups are written; what these add is left to
# the writer, since only a log that was copied whole is begun anew. With more left, others wait longer for that moment:
# with 16 MB the p99 of a heartbeat under load was 62 ms, with 4 it is 42.
COPY_BYTES = 4 * 2**20
CHECKPOINT_PAGES = 4_000
# Room for the blobs of a shared commit: with the default of 2 MB they are written out before it.
CACHE_KB = 65_536
BUSY_SECONDS = 30.0


def opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        for pragma in (
            f"page_size = {PAGE}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "fullfsync = ON",
            f"cache_size = -{CACHE_KB}",
            f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
            f"journal_size_limit = {4 * CHECKPOINT_PAGES * PAGE}",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


class Log:
    """Copies what was committed into the file, whenever the log grew by so much."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._grown = 0
        self._due = Event()
        self._going = True
        self._thread = Thread(target=self._work, name="hermes-rl-store-log", daemon=True)
        self._thread.start()

    def grew(self, size: int) -> None:
        self._grown += size
        if self._grown >= COPY_BYTES:
            self._grown = 0
            self._due.set()

    def close(self) -> None:
        self._going = False
        self._due.set()
        self._thread.join()

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while self._due.wait() and self._going:
            self._due.clear()
            # Whoever writes is told of a full disk; here it means that the log stays as it is.
            with suppress(sqlite3.Error):
                connection = connection or opened(self._path)
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if connection is not None:
            connection.close()

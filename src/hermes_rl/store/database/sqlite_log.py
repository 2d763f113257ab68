"""SQLite connections, and the thread that checkpoints the write-ahead log into the database file.

Always true: a commit returns after it is on disk; nobody waits for the thread.
"""

import sqlite3
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

# Larger pages and fewer checkpoints: blobs of a megabyte are written a third faster than with the defaults.
PAGE_BYTES = 16_384
# A checkpoint takes a fifth of a write. The thread does it while the next groups are written; what these add is left to
# the writer, since only a fully checkpointed log restarts. More bytes make others wait longer for that moment: with
# 16 MB the p99 of a heartbeat under load was 62 ms, with 4 MB it is 42 ms.
CHECKPOINT_BYTES = 4 * 2**20
CHECKPOINT_PAGES = 4_000
# Room for the blobs of a shared commit: with the default of 2 MB they would be written out before it.
CACHE_KB = 65_536
BUSY_SECONDS = 30.0


def open_connection(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        for pragma in (
            f"page_size = {PAGE_BYTES}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "fullfsync = ON",
            f"cache_size = -{CACHE_KB}",
            f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
            f"journal_size_limit = {4 * CHECKPOINT_PAGES * PAGE_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


class WalCheckpointer:
    """Checkpoints the log in a thread whenever it grew by CHECKPOINT_BYTES."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending_bytes = 0
        self._due = Event()
        self._running = True
        self._thread = Thread(target=self._work, name="hermes-rl-store-log", daemon=True)
        self._thread.start()

    def add_bytes(self, size: int) -> None:
        self._pending_bytes += size
        if self._pending_bytes >= CHECKPOINT_BYTES:
            self._pending_bytes = 0
            self._due.set()

    def close(self) -> None:
        self._running = False
        self._due.set()
        self._thread.join()

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while self._due.wait() and self._running:
            self._due.clear()
            # Writers report a full disk; here the log just stays as it is.
            with suppress(sqlite3.Error):
                connection = connection or open_connection(self._path)
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if connection is not None:
            connection.close()

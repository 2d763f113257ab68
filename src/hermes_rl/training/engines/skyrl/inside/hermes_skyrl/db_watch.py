"""Detects changes of the database that API and engine share, by polling SQLite's cheap change counter.

SkyRL's processes poll for work and results every 0.1 to 1 s instead; a step on a small model mostly waits for that.
"""

import sqlite3
import time

POLL_INTERVAL_S = 0.002


class ChangeWatcher:
    """Changes of a SQLite file by any process, including this one, since the last check."""

    def __init__(self, database_url: str) -> None:
        path = database_url.removeprefix("sqlite:///")
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._seen = self._version()

    def changed(self) -> bool:
        before, self._seen = self._seen, self._version()
        return self._seen != before

    def wait(self, seconds: float) -> None:
        """Wait for a change, up to `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.changed() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)

    def close(self) -> None:
        self._connection.close()

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

"""When the database that API and engine share has changed: SQLite's own count of it, cheap enough to ask often.

SkyRL's processes look for work and for results every 0.1 to 1 s instead, which a step on a small model spends most of
its time waiting for.
"""

import sqlite3
import time

LOOK_EVERY_S = 0.002


class Changes:
    """Of a SQLite file by anybody, this process too, since the last question."""

    def __init__(self, database_url: str) -> None:
        path = database_url.removeprefix("sqlite:///")
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._seen = self._version()

    def any(self) -> bool:
        before, self._seen = self._seen, self._version()
        return self._seen != before

    def wait(self, seconds: float) -> None:
        """Until there is one, at most so long."""
        deadline = time.monotonic() + seconds
        while not self.any() and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)

    def close(self) -> None:
        self._connection.close()

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

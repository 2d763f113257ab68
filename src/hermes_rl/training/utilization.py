"""Engine utilization: the time during which at least one request to the engine was in flight."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class BusyTimer:
    """Counts overlapping requests once."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._since = 0.0
        self._total = 0.0

    @contextmanager
    def request(self) -> Iterator[None]:
        if not self._in_flight:
            self._since = time.monotonic()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._total += time.monotonic() - self._since

    def take(self) -> float:
        """Return the busy seconds since the last call."""
        now = time.monotonic()
        if self._in_flight:
            self._total, self._since = self._total + now - self._since, now
        taken, self._total = self._total, 0.0
        return taken

"""When an engine had something to do: the time in which at least one request to it was under way."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Busy:
    """Overlapping requests count once."""

    def __init__(self) -> None:
        self._under_way = 0
        self._since = 0.0
        self._total = 0.0

    @contextmanager
    def request(self) -> Iterator[None]:
        if not self._under_way:
            self._since = time.monotonic()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._total += time.monotonic() - self._since

    def take(self) -> float:
        """Seconds of it since they were taken last."""
        now = time.monotonic()
        if self._under_way:
            self._total, self._since = self._total + now - self._since, now
        taken, self._total = self._total, 0.0
        return taken

"""Retry delays: exponential backoff with jitter, and parsing of Retry-After headers."""

import math
import random
from datetime import datetime
from email.utils import parsedate_to_datetime


class Backoff:
    """The retry delays of one client. Call `reset` after a success."""

    def __init__(self, initial: float = 0.1, maximum: float = 5.0) -> None:
        self._initial = initial
        self._maximum = maximum
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next(self) -> float:
        """The next delay in seconds."""
        self._tries += 1
        return backoff_seconds(self._tries - 1, initial=self._initial, maximum=self._maximum)


def backoff_seconds(attempt: int, *, initial: float, maximum: float) -> float:
    """Seconds before the next attempt, with 50% jitter; attempts count from 0."""
    # After a long outage the power of two would overflow a float.
    return random.uniform(0.5, 1.0) * min(maximum, initial * 2.0 ** min(attempt, 64))


def parse_retry_after(retry_after: str, now: datetime) -> float | None:
    """The delay in a Retry-After header, given as seconds or as a date; None when it is neither."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(retry_after) - now).total_seconds()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None

"""How long to wait before asking again: as the other side says, else twice as long each time, within bounds.

Always true: a wait that nobody asked for is never in step with others'.
"""

import math
import random
from datetime import datetime
from email.utils import parsedate_to_datetime


def pause(attempt: int, *, first: float, longest: float) -> float:
    """Seconds before the next try, between half and the whole of what is due; attempts count from 0."""
    # Beyond this the bound has been reached, and two to the power of a long outage is no float.
    return random.uniform(0.5, 1.0) * min(longest, first * 2.0 ** min(attempt, 64))


def seconds_asked_for(retry_after: str, now: datetime) -> float | None:
    """The wait that a Retry-After header asks for, as seconds or as a date; None when it says neither."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(retry_after) - now).total_seconds()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None

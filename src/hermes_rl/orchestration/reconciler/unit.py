"""A unit: a process that is kept running, which is a component of a run or the worker of a shard.

Always true: values only.
"""

from dataclasses import dataclass
from enum import StrEnum


class UnitState(StrEnum):
    WAITING = "waiting"
    """For units that start before it, for its restart delay, or for a host."""
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """In seconds, except `most_failures`."""

    first_pause: float = 1.0
    longest_pause: float = 30.0
    most_failures: int = 5
    """Tolerated within `window`; one more is fatal."""
    window: float = 900.0
    steady_after: float = 300.0
    """After being ready for this long, a unit's failures are forgotten."""

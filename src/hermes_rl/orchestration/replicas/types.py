"""The data types of a fleet: shards and replicas, observations of them, and actions.

Always true: values only. A *replica* is a host for workers (a Ray actor, or this machine); a *worker* is one `serve`
process with one shard of the items; a *launch id* names one start of a worker and is never reused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hermes_rl.orchestration.reconciler.unit import RestartPolicy, Unit


class ReplicaState(StrEnum):
    OPENING = "opening"
    """Requested; it has not responded yet."""
    OPEN = "open"
    CLOSING = "closing"
    """Its shards are being drained; then it is closed."""


class Ending(StrEnum):
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Replica:
    """A new `incarnation` means a new process without the old one's workers. `since` is when it entered its state."""

    state: ReplicaState
    since: float
    last_seen: float
    incarnation: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Shard(Unit):
    """`launch_id` and `replica` identify its current or next worker."""

    replica: str | None = None
    launch_id: str | None = None


@dataclass(frozen=True, slots=True)
class FleetTimeouts(RestartPolicy):
    """In seconds."""

    drain_timeout: float = 75.0
    """A draining worker is killed after this."""
    silence_timeout: float = 60.0
    """A replica that does not respond for this long is given up, and its shards are reassigned."""
    start_timeout: float = 10.0
    """A worker that does not appear within this was never started: the request was lost."""
    placement_wait: float = 10.0
    """How long a shard waits for an opening replica when all others have their share."""
    rebalance_delay: float = 5.0
    """Shards are rebalanced only after this long without a replica opening or closing."""
    steady_after: float = 120.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """`launch_prefix` makes launch ids unique to one driver; `opened` and `launches` are running totals."""

    launch_prefix: str
    shards: tuple[Shard, ...]
    replicas: Mapping[str, Replica] = field(default_factory=dict)
    timeouts: FleetTimeouts = field(default_factory=FleetTimeouts)
    opened: int = 0
    launches: int = 0
    changed_at: float = 0.0
    """When a replica was last opened or closed."""
    open_failures: tuple[float, ...] = ()
    """When replicas were lost that had never responded."""
    ending: Ending | None = None
    reason: str | None = None

    @classmethod
    def new(cls, shards: int, launch_prefix: str, timeouts: FleetTimeouts | None = None) -> "Fleet":
        return cls(launch_prefix, tuple(Shard() for _ in range(shards)), timeouts=timeouts or FleetTimeouts())

    @property
    def over(self) -> bool:
        """Whether it has ended and no replica is left."""
        return self.ending is not None and not self.replicas

    def shards_on(self, replica: str) -> list[int]:
        return [number for number, shard in enumerate(self.shards) if shard.replica == replica]


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker as its replica sees it. `ended` is the reason that `serve` reported."""

    launch_id: str
    running: bool
    exit_code: int | None = None
    ended: str | None = None
    problem: str | None = None
    """The last lines of output of a failed worker."""
    last_line: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """`incarnation` is None while it does not respond: it waits for resources, or its node is gone."""

    incarnation: str | None = None
    node: str | None = None
    workers: Mapping[int, WorkerFacts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """A snapshot of what is observed and desired. A replica that is not in `replicas` is gone for good."""

    replicas: Mapping[str, ReplicaFacts]
    wanted: int
    leaving: frozenset[str] = frozenset()
    """Replicas to drain and close."""
    stop: bool = False
    abort: bool = False
    """Stop without waiting for rollouts in flight."""
    problem: str | None = None
    """Why the last attempt to open a replica failed."""


@dataclass(frozen=True, slots=True)
class OpenReplica:
    replica: str


@dataclass(frozen=True, slots=True)
class CloseReplica:
    replica: str


@dataclass(frozen=True, slots=True)
class StartWorker:
    replica: str
    shard: int
    launch_id: str


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Ask a worker to finish the rollouts in flight and exit."""

    replica: str
    shard: int
    launch_id: str


@dataclass(frozen=True, slots=True)
class KillWorker:
    replica: str
    shard: int
    launch_id: str


Action = OpenReplica | CloseReplica | StartWorker | DrainWorker | KillWorker

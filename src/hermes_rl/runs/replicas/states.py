"""What a fleet of replicas is made of: its shards and replicas as they stand, what is seen of them, what is to be done.

Always true: values only. A *replica* is a place for workers (a Ray actor, or this machine); a *worker* is one `serve`
process with one shard of the items; a *turn* names one start of a worker, and is never used twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ReplicaState(StrEnum):
    OPENING = "opening"
    """Asked for; it has not answered yet."""
    OPEN = "open"
    CLOSING = "closing"
    """Its shards are drained; then it is closed."""


class ShardState(StrEnum):
    FREE = "free"
    """Nobody serves it."""
    STARTING = "starting"
    SERVED = "served"
    LEAVING = "leaving"
    """Its worker finishes what is in flight and ends; then it is free."""
    DONE = "done"
    """Its worker ended by itself, with no more to do."""


class Ending(StrEnum):
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Replica:
    """`life` is that of its process: another one has lost all that the last one held. `since` is of its state."""

    state: ReplicaState
    since: float
    heard_at: float
    life: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """`turn` and `replica` are of the worker that has it, or is to have it. `since` is when it came into its state."""

    state: ShardState = ShardState.FREE
    replica: str | None = None
    turn: str | None = None
    since: float = 0.0
    not_before: float = 0.0
    failures: tuple[float, ...] = ()
    restarts: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """In seconds, but for the counts."""

    drain_within: float = 75.0
    """A worker that is told to end has so long; then it is killed."""
    silent_for: float = 60.0
    """A replica that does not answer for so long is given up, and its shards go elsewhere."""
    told_within: float = 10.0
    """A worker that was ordered is seen within this, or the order was lost."""
    room_within: float = 10.0
    """So long a shard waits for a replica that is being opened, when all others have their share."""
    settled_after: float = 5.0
    """Shards are moved to balance only when no replica came or went for so long."""
    first_pause: float = 1.0
    longest_pause: float = 30.0
    most_failures: int = 5
    """Of one shard within `window`; one more ends the fleet."""
    window: float = 900.0
    steady_after: float = 120.0
    """Served for so long, its failures are forgotten."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """`era` makes the turns of one driver its own; `opened` and `turns` count what was ever asked for."""

    era: str
    shards: tuple[Shard, ...]
    replicas: Mapping[str, Replica] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    opened: int = 0
    turns: int = 0
    changed_at: float = 0.0
    """When a replica last came or went."""
    refusals: tuple[float, ...] = ()
    """When replicas were lost that had never answered."""
    ending: Ending | None = None
    reason: str | None = None

    @classmethod
    def new(cls, shards: int, era: str, patience: Patience | None = None) -> "Fleet":
        return cls(era, tuple(Shard() for _ in range(shards)), patience=patience or Patience())

    @property
    def over(self) -> bool:
        """It has ended and nothing of it is left."""
        return self.ending is not None and not self.replicas

    def of(self, replica: str) -> list[int]:
        """The shards that a replica has."""
        return [number for number, shard in enumerate(self.shards) if shard.replica == replica]


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker as its replica sees it. `ended` is what `serve` itself said of its end."""

    turn: str
    running: bool
    exit_code: int | None = None
    ended: str | None = None
    problem: str | None = None
    """What it said last, of one that failed."""
    says: str | None = None
    """Its last line."""


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """`life` is None while it does not answer: it waits for room, or its node is gone and nobody knows yet."""

    life: str | None = None
    node: str | None = None
    workers: Mapping[int, WorkerFacts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is seen and wanted at one moment. A replica that is not in `replicas` is gone for good."""

    replicas: Mapping[str, ReplicaFacts]
    wanted: int
    leaving: frozenset[str] = frozenset()
    """Replicas that somebody wants drained and closed."""
    stop: bool = False
    hurry: bool = False
    """What is in flight is given up."""
    problem: str | None = None
    """Why the last replica that could not be opened was not."""


@dataclass(frozen=True, slots=True)
class Open:
    replica: str


@dataclass(frozen=True, slots=True)
class Close:
    replica: str


@dataclass(frozen=True, slots=True)
class Start:
    replica: str
    shard: int
    turn: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask a worker to finish what is in flight and end."""

    replica: str
    shard: int
    turn: str


@dataclass(frozen=True, slots=True)
class Kill:
    replica: str
    shard: int
    turn: str


Action = Open | Close | Start | Drain | Kill

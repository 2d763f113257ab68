"""JSON bodies of the trajectory API, shared by server and client.

Unknown fields are refused by name; counts are in rollouts and times in seconds. Groups are sent in their binary form
(docs/formats.md), those of a batch concatenated, each prefixed by its length.
"""

from collections.abc import AsyncIterator
from struct import Struct
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

GROUP_TYPE = "application/vnd.hermes-rl.group"
GROUPS_TYPE = "application/vnd.hermes-rl.groups"
# Length prefix of a group.
FRAME = Struct("<Q")

# The largest integer that every JSON parser keeps exact.
MAX_SAFE_INTEGER = 2**53 - 1


def _as_integer(value: object) -> object:
    """JSON does not distinguish 4.0 from 4."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


AS_INTEGER = BeforeValidator(_as_integer)
SafeInteger = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER), AS_INTEGER]
Count = Annotated[int, Field(ge=1, lt=2**31), AS_INTEGER]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]


class ApiBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EnvironmentRegistration(ApiBody):
    """An environment that will send groups. `instance` distinguishes replicas with the same name."""

    name: Name
    instance: Annotated[str, Field(max_length=200)] = ""
    group_size: Annotated[int, Field(ge=1, lt=2**16), AS_INTEGER] | None = None
    weight: Annotated[float, Field(ge=0, le=1e9)] = 1.0
    minimum: Annotated[float, Field(ge=0, le=1)] = 0.0
    settings: dict[str, Any] = {}


class RegisteredEnvironment(ApiBody):
    """A registered environment. `cursor` is the next draw it reported; None before the first."""

    id: int
    name: str
    instance: str
    group_size: int | None
    weight: float
    minimum: float
    connected: bool
    running: int
    cursor: int | None
    seen_at: float


class WorkRequest(ApiBody):
    """Rollouts an environment runs now, and how many more it wants to start. Also serves as its heartbeat."""

    running: SafeInteger
    wanted: SafeInteger = 0
    cursor: SafeInteger | None = None


class WorkGrant(ApiBody):
    """How many rollouts may start. `waiting` says why fewer than requested.

    `oldest` is the oldest policy version whose tokens are still trained on; None if any is. `steps` counts the batches
    trained on; those with nothing to train on leave the version as it is.
    """

    granted: int
    version: int
    waiting: str | None = None
    oldest: int | None = None
    steps: int = 0


class Draws(ApiBody):
    """Draws whose groups are in the store."""

    draws: list[int]


class ItemScores(ApiBody):
    """The scores of one group's scored rollouts. `place` is its position among all groups."""

    place: int
    item_id: str
    scores: list[float]


class GroupScores(ApiBody):
    """Groups in the order in which they were stored; none when there are no more."""

    groups: list[ItemScores]


class Posted(ApiBody):
    """Whether the group was new, and its position in the queue."""

    new: bool
    place: int


class TrainerRegistration(ApiBody):
    """A trainer of batches of `batch_size` rollouts, none more than `max_staleness` versions old.

    `needs` lists what groups must have: logprobs, versions, one_sequence (one sequence per rollout).
    """

    name: Name
    batch_size: Count
    max_staleness: Annotated[int, Field(ge=0, lt=2**31), AS_INTEGER] | None = None
    needs: list[Literal["logprobs", "versions", "one_sequence"]] = ["logprobs", "versions"]
    settings: dict[str, Any] = {}


class LeaseRequest(ApiBody):
    """Request a batch, leased for `seconds`, waiting up to `wait` seconds. The same `request` gets the same batch."""

    trainer: Name
    seconds: Seconds = 600.0
    batch_size: Count | None = None
    request: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    wait: Annotated[float, Field(ge=0, le=60)] = 0.0


class LeasedGroup(ApiBody):
    """A group of a batch. `size` counts the rollouts to train on; `bytes` is its binary size."""

    place: int
    id: str
    environment: int
    size: int
    rollouts: int
    bytes: int


class LeasedBatch(ApiBody):
    """Groups leased until `expires_at`, in order. `version` is the policy version at the time of the lease."""

    id: int
    trainer: str
    version: int
    expires_at: float
    groups: list[LeasedGroup]


class LeaseExtension(ApiBody):
    seconds: Seconds


class Extended(ApiBody):
    expires_at: float


class BatchNumbers(ApiBody):
    batches: Annotated[list[SafeInteger], Field(max_length=10_000)]


class Ended(ApiBody):
    """How many of the batches changed state."""

    count: int


class PolicyVersion(ApiBody):
    """A policy version. `by` identifies one trainer process, which may repeat the request."""

    version: SafeInteger
    by: Name


class VersionSet(ApiBody):
    new: bool


class Queued(ApiBody):
    """The queue of one environment or of all."""

    waiting_groups: int
    waiting: int
    leased_groups: int
    leased: int


class OutcomeCount(ApiBody):
    """How many groups and rollouts of an environment were trained on or dropped, by cause."""

    environment: int
    outcome: str
    cause: str
    groups: int
    rollouts: int


class QueueStatus(ApiBody):
    """The queue at one moment. `capacity` is None while no trainer has set `max_staleness`."""

    version: int
    capacity: int | None
    total: Queued
    environments: dict[int, Queued]
    running: dict[int, int]
    outcomes: list[OutcomeCount]


async def frame_groups(groups: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Prefix each group with its length."""
    async for data in groups:
        yield FRAME.pack(len(data))
        yield data

"""What travels over the trajectory API beside groups: the JSON bodies of its routes, read and written by both ends.

Always true: a field that is not known here is refused by name; counts are in rollouts and times in seconds. Groups
travel in their binary form (docs/formats.md), a batch's one after the other, each behind its length.
"""

from collections.abc import AsyncIterator
from struct import Struct
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

GROUP_TYPE = "application/vnd.hermes-rl.group"
GROUPS_TYPE = "application/vnd.hermes-rl.groups"
# The length of the group that follows.
FRAME = Struct("<Q")

# What every reader of JSON keeps exactly.
LARGEST = 2**53 - 1


def _whole(value: object) -> object:
    """To JSON 4.0 is an integer; to Python True is one too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Whole = Annotated[int, Field(ge=0, le=LARGEST), WHOLE]
Count = Annotated[int, Field(ge=1, lt=2**31), WHOLE]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EnvironmentRegistration(Body):
    """An environment that wants to send groups. `instance` tells replicas of one name apart."""

    name: Name
    instance: Annotated[str, Field(max_length=200)] = ""
    group_size: Annotated[int, Field(ge=1, lt=2**16), WHOLE] | None = None
    weight: Annotated[float, Field(ge=0, le=1e9)] = 1.0
    minimum: Annotated[float, Field(ge=0, le=1)] = 0.0
    settings: dict[str, Any] = {}


class RegisteredEnvironment(Body):
    """An environment as the API knows it. `cursor` is the next draw it said it would make; None before the first."""

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


class WorkRequest(Body):
    """What an environment runs now, and how many more rollouts it would begin; also the sign that it lives."""

    running: Whole
    wanted: Whole = 0
    cursor: Whole | None = None


class WorkGrant(Body):
    """How many rollouts may begin. `waiting` says why it is not what was wanted.

    `oldest` is the oldest version of the policy whose tokens are still trained on; None while any is.
    """

    granted: int
    version: int
    waiting: str | None = None
    oldest: int | None = None


class Draws(Body):
    """Draws whose groups are in the store."""

    draws: list[int]


class Posted(Body):
    """What became of a group: whether it was new, and its place in the queue."""

    new: bool
    place: int


class TrainerRegistration(Body):
    """A trainer that wants batches of `batch_size` rollouts, none staler than `max_staleness` versions.

    `needs` is what a group must have: logprobs, versions, one_sequence (a rollout is one sequence).
    """

    name: Name
    batch_size: Count
    max_staleness: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    needs: list[Literal["logprobs", "versions", "one_sequence"]] = ["logprobs", "versions"]
    settings: dict[str, Any] = {}


class LeaseRequest(Body):
    """Ask for a batch, held for `seconds`. The same `request` is given the same batch; `wait` for one so long."""

    trainer: Name
    seconds: Seconds = 600.0
    batch_size: Count | None = None
    request: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    wait: Annotated[float, Field(ge=0, le=60)] = 0.0


class LeasedGroup(Body):
    """A group of a batch. `size` counts the rollouts to train on, `bytes` its binary form."""

    place: int
    id: str
    environment: int
    size: int
    rollouts: int
    bytes: int


class LeasedBatch(Body):
    """Groups on loan, in their order, until `expires_at`. `version` was the policy's when they were leased."""

    id: int
    trainer: str
    version: int
    expires_at: float
    groups: list[LeasedGroup]


class Extension(Body):
    seconds: Seconds


class Extended(Body):
    expires_at: float


class BatchNumbers(Body):
    batches: Annotated[list[Whole], Field(max_length=10_000)]


class Ended(Body):
    """How many of the batches were not so before."""

    count: int


class PolicyVersion(Body):
    """A version of the policy. `by` names one life of one trainer, which may say it again."""

    version: Whole
    by: Name


class VersionSet(Body):
    new: bool


class Queued(Body):
    """What lies in the queue of one environment or of all."""

    waiting_groups: int
    waiting: int
    leased_groups: int
    leased: int


class Outcome(Body):
    """How many groups and rollouts of an environment were trained on or dropped, by cause."""

    environment: int
    outcome: str
    cause: str
    groups: int
    rollouts: int


class QueueStatus(Body):
    """The queue at one moment. `capacity` is None while no trainer says how stale is too stale."""

    version: int
    capacity: int | None
    total: Queued
    environments: dict[int, Queued]
    running: dict[int, int]
    outcomes: list[Outcome]


class Problem(Body):
    """Why a request was refused: `kind` to act by, `message` for a person, `field` where one is to blame."""

    kind: str
    message: str
    field: str | None = None


async def framed(groups: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Groups as they travel one after the other."""
    async for data in groups:
        yield FRAME.pack(len(data))
        yield data

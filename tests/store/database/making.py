"""Groups for the store to keep, small and each with an id of its own unless it is told one."""

import base64
import random
from dataclasses import replace
from itertools import count
from typing import Any

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.trajectory import Group, Provenance, Rollout, Sampling, Sequence, StopReason, Usage
from hermes_rl.store.codec import encode
from hermes_rl.store.database.registrations import TrainerRow
from hermes_rl.store.database.store import Store

PROVENANCE = Provenance("e", "h", "m", {"hermes-rl": "1"})
NUMBERS = count(1)


def make_sequence(version: int | None = 0, logprob: float | None = -0.5) -> Sequence:
    return Sequence((5, 6, 7), (0, 1, 1), (None, logprob, logprob), (None, version, version), Sampling(1.0))


def make_rollout(index: int = 0, *, version: int | None = 0, text: str = "hello", **fields: Any) -> Rollout:
    rollout = Rollout(
        item_id="item",
        index=index,
        seed=index,
        messages=[{"role": "user", "content": text}],
        score=0.5,
        stop_reason=StopReason.NATURAL,
        turns_used=2,
        usage=Usage(3, 2),
        sequences=(make_sequence(version),),
    )
    return replace(rollout, **fields)


def make_failed(index: int = 0, *, version: int | None = 0) -> Rollout:
    failure = Failure(FailureSource.SANDBOX, "start", "no")
    return make_rollout(index, version=version, score=None, stop_reason=None, failure=failure)


def make_group(size: int = 4, *, id: str | None = None, version: int | None = 0, **fields: Any) -> bytes:  # noqa: A002
    rollouts = fields.pop("rollouts", None) or tuple(make_rollout(index, version=version) for index in range(size))
    identity = f"group-{next(NUMBERS)}" if id is None else id
    return encode(Group(item_id="item", item={}, rollouts=rollouts, provenance=PROVENANCE, id=identity, **fields))


def make_large_group(name: str) -> bytes:
    """About 60 KB of noise, which fills a disk and no compressor makes small."""
    noise = random.Random(name).randbytes(45_000)
    return make_group(id=name, rollouts=(make_rollout(text=base64.b64encode(noise).decode()),))


async def add_groups(store: Store, environment: int, count: int, size: int = 4, version: int = 0) -> list[int]:
    """Their places."""
    return [(await store.add(environment, make_group(size, version=version))).place for _ in range(count)]


async def with_trainer(store: Store, batch_size: int = 8, max_staleness: int | None = None) -> int:
    """Register a trainer named `trainer` and an environment; the latter's number."""
    await store.register_trainer(TrainerRow("trainer", batch_size, max_staleness))
    return (await store.register_environment("e")).id

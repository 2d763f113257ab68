"""What every group of the chaos must be, by its producer and number alone, so that whoever reads one can tell.

Always true: the same producer and number make the same bytes, in any process. Most groups are small, a third are
16×2048 tokens, and some have a body that no socket takes in one go.
"""

import base64
from dataclasses import dataclass
from functools import cache
from random import Random

from hermes_rl.core.trajectory import Group, Provenance, Rollout, Sampling, Sequence, StopReason
from hermes_rl.store.codec import encode

KINDS = ("small", "middle", "large")
WEIGHTS = (60, 34, 6)
ROLLOUTS = {"small": 2, "middle": 16, "large": 4}
TOKENS = {"small": 64, "middle": 2048, "large": 64}
NOISE = 3 * 2**20
PROVENANCE = Provenance("chaos", "h", "m", {"hermes-rl": "1"})


@dataclass(frozen=True, slots=True, order=True)
class Lot:
    """One group of one producer."""

    producer: str
    number: int

    @property
    def id(self) -> str:
        return f"{self.producer}/{self.number}"

    @property
    def kind(self) -> str:
        return Random(f"kind of {self.id}").choices(KINDS, WEIGHTS)[0]

    @property
    def rollouts(self) -> int:
        return ROLLOUTS[self.kind]


def lot_of(group_id: str) -> Lot:
    producer, _, number = group_id.rpartition("/")
    return Lot(producer, int(number))


def make(lot: Lot, kind: str | None = None) -> bytes:
    """The group in its binary form; of another kind than its own when told one."""
    kind = kind or lot.kind
    random = Random(lot.id)
    text = base64.b64encode(random.randbytes(NOISE)).decode() if kind == "large" else lot.id
    rollouts = tuple(
        Rollout(
            item_id=lot.id,
            index=index,
            seed=index,
            messages=[{"role": "user", "content": text if index == 0 else ""}],
            score=random.random(),
            stop_reason=StopReason.NATURAL,
            sequences=(_sequence(TOKENS[kind], random.randrange(len(_tokens()) // 2)),),
        )
        for index in range(ROLLOUTS[kind])
    )
    return encode(Group(item_id=lot.id, item={}, rollouts=rollouts, provenance=PROVENANCE, id=lot.id, draw=lot.number))


def _sequence(length: int, start: int) -> Sequence:
    tokens = _tokens()[start : start + length]
    sampled = length - length // 8
    mask = (0,) * (length - sampled) + (1,) * sampled
    logprobs = tuple(-(token % 1000) / 256 if kept else None for token, kept in zip(tokens, mask, strict=True))
    versions = tuple(0 if kept else None for kept in mask)
    return Sequence(tokens, mask, logprobs, versions, Sampling(1.0))


@cache
def _tokens() -> tuple[int, ...]:
    random = Random("tokens")
    return tuple(random.randrange(150_000) for _ in range(2**15))

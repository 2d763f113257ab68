"""Which groups make the next batch, and how much more is wanted: decisions without a database or a clock.

Always true of a batch: it is of whole groups, of each environment the oldest, and the oldest of all is among them; it
reaches its size, and no group could be left out of it; an environment that is gone is waited for by nobody.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group in the queue. `size` is in rollouts."""

    place: int
    environment: int
    size: int


@dataclass(frozen=True, slots=True)
class Share:
    """What an environment has a right to: its weight among those that have groups, and the least part of each batch."""

    weight: float = 1.0
    minimum: float = 0.0


EVEN = Share()


@dataclass(frozen=True, slots=True)
class Claim:
    """What an environment has waiting or running, and how much more it asks for, both in rollouts.

    `kind` is its name: replicas of one environment do not keep each other waiting longer than themselves.
    """

    kind: str
    weight: float
    held: int
    wanted: int = 0

    @property
    def demand(self) -> int:
        return self.held + self.wanted


def choose(
    waiting: Sequence[Waiting], batch_size: int, shares: Mapping[int, Share], live: Collection[int]
) -> tuple[Waiting, ...]:
    """The groups of the next batch in their order; none while it is to wait.

    `waiting` is in the order of places. A live environment's minimum is waited for. Then each environment gives up to
    its share, oldest first, and what the others leave free goes by age alone.
    """
    if sum(group.size for group in waiting) < batch_size:
        return ()
    due = minimums(waiting, batch_size, shares, live)
    if due is None:
        return ()
    present = {group.environment for group in waiting}
    weights = {name: shares.get(name, EVEN).weight for name in present}
    everything = sum(weights.values())
    # With no weight anywhere, age alone decides.
    limits = {name: batch_size * weight / everything if everything else 0.0 for name, weight in weights.items()}
    batch = _Batch(batch_size)
    batch.take(waiting[0])
    for group in waiting[1:]:
        if batch.taken.get(group.environment, 0) < due.get(group.environment, 0):
            batch.take(group)
    batch.fill(waiting, limits)
    batch.fill(waiting, None)
    return batch.without_excess(waiting[0], due)


def minimums(
    waiting: Sequence[Waiting], batch_size: int, shares: Mapping[int, Share], live: Collection[int]
) -> dict[int, int] | None:
    """How many rollouts each environment is to have in the batch; None while a live one has too few of them.

    Minimums that together ask for more than a whole batch are scaled down to it.
    """
    asked = {name: share.minimum for name, share in shares.items() if share.minimum > 0}
    scale = batch_size / max(1.0, sum(asked.values()))
    held = dict.fromkeys(asked, 0)
    for group in waiting:
        if group.environment in held:
            held[group.environment] += group.size
    # The sum of roundings upward could reach beyond the batch, so they go down, to at least one.
    due = {name: max(1, math.floor(part * scale + 1e-9)) for name, part in asked.items()}
    if any(held[name] < count and name in live for name, count in due.items()):
        return None
    return {name: min(count, held[name]) for name, count in due.items()}


def capacity(*, max_staleness: int, version: int, batch_size: int, accepted: int, running: int) -> int:
    """How many more rollouts may be begun without one of them being too old when its turn comes."""
    return (max_staleness + version + 1) * batch_size - accepted - running


def accepted(*, version: int, batch_size: int, waiting: int, in_training: int) -> int:
    """The rollouts that were accepted so far, each past step counted as one batch.

    Counting what the steps really held would let whole groups that reach beyond the batch use up the capacity for ever.
    """
    return version * batch_size + waiting + in_training


def room(capacity: int, share: Share, *, batch_size: int, waiting: int, running: int) -> int:
    """How much of the capacity one environment may use: all of it, and always what its minimum still lacks.

    Without the latter, others could fill the queue and wait for its minimum for ever.
    """
    owed = math.ceil(share.minimum * batch_size) - waiting - running
    return max(capacity, owed, 0)


def fair_parts(total: int, claims: Mapping[int, Claim]) -> dict[int, float]:
    """How much of `total` each may hold: by weight, and nobody more than it asks for; the rest is the others'."""
    parts = dict.fromkeys(claims, 0.0)
    unmet = {name: claim for name, claim in claims.items() if claim.demand > 0}
    left = float(max(0, total))
    while unmet:
        weights = {name: claim.weight for name, claim in unmet.items()}
        # Those without a weight share what the others leave.
        weights = weights if any(weights.values()) else dict.fromkeys(unmet, 1.0)
        everything = sum(weights.values())
        met = [name for name, claim in unmet.items() if claim.demand <= left * weights[name] / everything]
        if not met:
            return parts | {name: left * weight / everything for name, weight in weights.items()}
        for name in met:
            parts[name] = float(unmet.pop(name).demand)
        left = max(0.0, left - sum(parts[name] for name in met))
    return parts


def fair_room(free: int, claims: Mapping[int, Claim], asking: int, batch_size: int) -> int:
    """How much of what is `free` one environment may take, so that the others find their parts when they ask.

    What environments of another name hold beyond their parts does not count against one that has less than its part of
    a single batch: rollouts that take hours would otherwise keep those that take seconds waiting until they end.
    """
    total = free + sum(claim.held for claim in claims.values())
    own, parts = claims[asking], fair_parts(total, claims)
    within = min(free, math.ceil(parts[asking] - 1e-9) - own.held)
    beyond = sum(max(0.0, one.held - parts[name]) for name, one in claims.items() if one.kind != own.kind)
    due = math.ceil(fair_parts(batch_size, claims)[asking] - 1e-9) - own.held
    return max(0, within, min(due, max(0, free) + math.floor(beyond + 1e-9)))


class _Batch:
    def __init__(self, size: int) -> None:
        self.size = size
        self.total = 0
        self.taken: dict[int, int] = {}
        self.groups: dict[int, Waiting] = {}

    def take(self, group: Waiting) -> None:
        self.groups[group.place] = group
        self.total += group.size
        self.taken[group.environment] = self.taken.get(group.environment, 0) + group.size

    def fill(self, waiting: Sequence[Waiting], limits: Mapping[int, float] | None) -> None:
        for group in waiting:
            if self.total >= self.size:
                return
            if group.place in self.groups:
                continue
            if limits is None or self.taken.get(group.environment, 0) < limits[group.environment]:
                self.take(group)

    def without_excess(self, oldest: Waiting, due: Mapping[int, int]) -> tuple[Waiting, ...]:
        settled = set()
        for group in sorted(self.groups.values(), key=lambda one: one.place, reverse=True):
            name = group.environment
            left = self.taken[name] - group.size
            if name in settled or group == oldest or self.total - group.size < self.size or left < due.get(name, 0):
                # An older one of the same environment must not go before this one.
                settled.add(name)
                continue
            del self.groups[group.place]
            self.total -= group.size
            self.taken[name] = left
        return tuple(sorted(self.groups.values(), key=lambda one: one.place))

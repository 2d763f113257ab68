"""Chooses the groups of the next batch, and computes capacity: pure functions without a database or a clock.

Always true of a batch: it holds whole groups, the oldest of each environment and the oldest of all; it reaches its
size, and every group is needed for that; it never waits for a disconnected environment.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueuedGroup:
    """A group in the queue. `size` is in rollouts."""

    place: int
    environment: int
    size: int


@dataclass(frozen=True, slots=True)
class Share:
    """An environment's weight among those with groups, and its minimum fraction of each batch."""

    weight: float = 1.0
    minimum: float = 0.0


DEFAULT_SHARE = Share()


@dataclass(frozen=True, slots=True)
class Claim:
    """What an environment has queued or running (`held`) and what more it asks for, in rollouts.

    `kind` is its name, shared by the replicas of one environment.
    """

    kind: str
    weight: float
    held: int
    wanted: int = 0

    @property
    def demand(self) -> int:
        return self.held + self.wanted


def choose_batch(
    waiting: Sequence[QueuedGroup], batch_size: int, shares: Mapping[int, Share], live: Collection[int]
) -> tuple[QueuedGroup, ...]:
    """The groups of the next batch, in order; none while it must wait.

    `waiting` is in queue order. The batch waits for the minimum of every live environment. Then each environment gives
    up to its share, oldest first, and the rest is filled by age alone.
    """
    if sum(group.size for group in waiting) < batch_size:
        return ()
    due = minimums(waiting, batch_size, shares, live)
    if due is None:
        return ()
    present = {group.environment for group in waiting}
    weights = {name: shares.get(name, DEFAULT_SHARE).weight for name in present}
    total = sum(weights.values())
    # When all weights are 0, age alone decides.
    limits = {name: batch_size * weight / total if total else 0.0 for name, weight in weights.items()}
    batch = _Batch(batch_size)
    batch.take(waiting[0])
    for group in waiting[1:]:
        if batch.taken.get(group.environment, 0) < due.get(group.environment, 0):
            batch.take(group)
    batch.fill(waiting, limits)
    batch.fill(waiting, None)
    return batch.without_excess(waiting[0], due)


def minimums(
    waiting: Sequence[QueuedGroup], batch_size: int, shares: Mapping[int, Share], live: Collection[int]
) -> dict[int, int] | None:
    """The minimum rollouts of each environment in the batch; None while a live one has too few.

    Minimums that add up to more than a batch are scaled down to it.
    """
    fractions = {name: share.minimum for name, share in shares.items() if share.minimum > 0}
    scale = batch_size / max(1.0, sum(fractions.values()))
    held = dict.fromkeys(fractions, 0)
    for group in waiting:
        if group.environment in held:
            held[group.environment] += group.size
    # Rounding up could exceed the batch in total, so this rounds down, to at least one.
    due = {name: max(1, math.floor(fraction * scale + 1e-9)) for name, fraction in fractions.items()}
    if any(held[name] < count and name in live for name, count in due.items()):
        return None
    return {name: min(count, held[name]) for name, count in due.items()}


def capacity(*, max_staleness: int, version: int, batch_size: int, accepted: int, running: int) -> int:
    """How many more rollouts may start without any of them being too stale when it is trained on."""
    return (max_staleness + version + 1) * batch_size - accepted - running


def accepted(*, version: int, batch_size: int, waiting: int, in_training: int) -> int:
    """The rollouts accepted so far, counting each past step as exactly one batch.

    Counting actual sizes would use up capacity for good whenever whole groups exceed the batch size.
    """
    return version * batch_size + waiting + in_training


def room(capacity: int, share: Share, *, batch_size: int, waiting: int, running: int) -> int:
    """How much of the capacity one environment may use: all of it, and always what is missing from its minimum.

    Otherwise other environments could fill the queue and batches would wait for the minimum forever.
    """
    missing = math.ceil(share.minimum * batch_size) - waiting - running
    return max(capacity, missing, 0)


def fair_shares(total: int, claims: Mapping[int, Claim]) -> dict[int, float]:
    """Split `total` by weight (max-min fairness): nobody gets more than its demand, the others share the rest."""
    parts = dict.fromkeys(claims, 0.0)
    unmet = {name: claim for name, claim in claims.items() if claim.demand > 0}
    left = float(max(0, total))
    while unmet:
        weights = {name: claim.weight for name, claim in unmet.items()}
        # Those without a weight share what the others leave.
        weights = weights if any(weights.values()) else dict.fromkeys(unmet, 1.0)
        weight_sum = sum(weights.values())
        met = [name for name, claim in unmet.items() if claim.demand <= left * weights[name] / weight_sum]
        if not met:
            return parts | {name: left * weight / weight_sum for name, weight in weights.items()}
        for name in met:
            parts[name] = float(unmet.pop(name).demand)
        left = max(0.0, left - sum(parts[name] for name in met))
    return parts


def fair_room(free: int, claims: Mapping[int, Claim], asking: int, batch_size: int) -> int:
    """How much of `free` one environment may take and still leave the others their fair shares.

    What environments of another name hold beyond their shares does not count against one that has less than its share
    of a single batch: otherwise environments with hour-long rollouts would block those with short ones.
    """
    total = free + sum(claim.held for claim in claims.values())
    own, parts = claims[asking], fair_shares(total, claims)
    within = min(free, math.ceil(parts[asking] - 1e-9) - own.held)
    beyond = sum(max(0.0, claim.held - parts[name]) for name, claim in claims.items() if claim.kind != own.kind)
    due = math.ceil(fair_shares(batch_size, claims)[asking] - 1e-9) - own.held
    return max(0, within, min(due, max(0, free) + math.floor(beyond + 1e-9)))


class _Batch:
    def __init__(self, size: int) -> None:
        self.size = size
        self.total = 0
        self.taken: dict[int, int] = {}
        self.groups: dict[int, QueuedGroup] = {}

    def take(self, group: QueuedGroup) -> None:
        self.groups[group.place] = group
        self.total += group.size
        self.taken[group.environment] = self.taken.get(group.environment, 0) + group.size

    def fill(self, waiting: Sequence[QueuedGroup], limits: Mapping[int, float] | None) -> None:
        for group in waiting:
            if self.total >= self.size:
                return
            if group.place in self.groups:
                continue
            if limits is None or self.taken.get(group.environment, 0) < limits[group.environment]:
                self.take(group)

    def without_excess(self, oldest: QueuedGroup, due: Mapping[int, int]) -> tuple[QueuedGroup, ...]:
        settled = set()
        for group in sorted(self.groups.values(), key=lambda group: group.place, reverse=True):
            name = group.environment
            left = self.taken[name] - group.size
            if name in settled or group == oldest or self.total - group.size < self.size or left < due.get(name, 0):
                # Older groups of the same environment must stay, too.
                settled.add(name)
                continue
            del self.groups[group.place]
            self.total -= group.size
            self.taken[name] = left
        return tuple(sorted(self.groups.values(), key=lambda group: group.place))

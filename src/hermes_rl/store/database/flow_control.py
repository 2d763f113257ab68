"""Grants environments new rollouts, in one transaction, so that replicas cannot grant the same capacity twice.

Always true: granted rollouts count as running until the environment reports otherwise or misses its heartbeats; without
a trainer nothing is granted, since the staleness limit is unknown. Unmet requests are stored, so that the environment
that asks most often does not take everything.
"""

from dataclasses import dataclass, replace

from hermes_rl.store.database.queue import Claim, Share, fair_room, room
from hermes_rl.store.database.registrations import heartbeat
from hermes_rl.store.database.transactions import SqlDialect, Transaction, execute, take_lock
from hermes_rl.store.database.views import Backlog, Status, status


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to an environment's request for work. `granted` is in rollouts; `waiting` is why it is not more.

    `oldest` is the oldest policy version that the trainer accepts; None when it accepts any. `steps` counts the batches
    that it acknowledged.
    """

    granted: int
    version: int
    waiting: str | None
    oldest: int | None = None
    steps: int = 0


def admit(
    dialect: SqlDialect,
    environment: int,
    running: int,
    wanted: int,
    cursor: int | None,
    limit: int,
    heartbeat_timeout: float,
) -> Transaction[Admission]:
    """Record a heartbeat, and grant what fits. `limit` is the maximum of waiting and running rollouts in total."""
    yield from take_lock(dialect)
    yield from heartbeat(dialect, environment, running, cursor)
    now = yield from status(dialect, heartbeat_timeout)
    if now.trainer is None:
        return Admission(0, now.version, "no trainer has registered yet")
    rows = yield from execute("SELECT id, name, weight, minimum FROM environments")
    shares = {number: Share(float(weight), float(minimum)) for number, _, weight, minimum in rows}
    claims = {number: _claim(now, number, name, weight) for number, name, weight, _ in rows}
    claims[environment] = replace(claims[environment], wanted=wanted)
    batch_size, max_staleness = now.trainer.batch_size, now.trainer.max_staleness
    unfilled = free = max(0, limit - now.total.waiting - sum(now.running.values()))
    why: str | None = "the queue is full"
    if now.capacity is not None and now.capacity < free:
        free, why = now.capacity, "more would be too old for the trainer"
    if now.needed is not None and now.needed < free:
        free, why = now.needed, "the trainer needs no more for its remaining steps"
    fair = fair_room(free, claims, environment, batch_size)
    if fair < min(free, wanted):
        why = "the rest is the share of other environments"
    waiting = now.backlog.get(environment, Backlog()).waiting
    granted = room(fair, shares[environment], batch_size=batch_size, waiting=waiting, running=running)
    granted = min(wanted, unfilled, granted)
    yield from execute(
        "UPDATE environments SET running = ?, wanted = ? WHERE id = ?", running + granted, wanted - granted, environment
    )
    oldest = None if max_staleness is None else now.version - max_staleness
    return Admission(granted, now.version, why if granted < wanted else None, oldest, now.steps)


def _claim(now: Status, environment: int, name: str, weight: float) -> Claim:
    """What an environment holds, and its unmet request if it is alive."""
    held = now.backlog.get(environment, Backlog()).waiting + now.running.get(environment, 0)
    return Claim(name, float(weight), held, now.wanted.get(environment, 0))

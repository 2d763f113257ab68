"""How much more an environment may begin: asked, granted and counted in one step, so replicas cannot take it twice.

Always true: what is granted counts as running from then on, until the environment says otherwise or falls silent;
without a trainer nothing is granted, since nobody could say yet how stale is too stale. What others ask for in vain is
remembered, so that whoever asks most often does not take all.
"""

from dataclasses import dataclass, replace

from hermes_rl.store.database.listing import Backlog, Status, status
from hermes_rl.store.database.members import heartbeat
from hermes_rl.store.database.queue import Claim, Share, fair_room, room
from hermes_rl.store.database.steps import Dialect, Steps, ask, lock


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to an environment that asks for work. `granted` is in rollouts; `waiting` is why it is not more.

    `oldest` is the oldest version of the policy that the trainer still takes; None while it takes any.
    """

    granted: int
    version: int
    waiting: str | None
    oldest: int | None = None


def admit(
    dialect: Dialect, environment: int, running: int, wanted: int, cursor: int | None, limit: int, silence: float
) -> Steps[Admission]:
    """Hear what runs, and grant what there is room for. `limit` bounds the rollouts that wait or run in all."""
    yield from lock(dialect)
    yield from heartbeat(dialect, environment, running, cursor)
    now = yield from status(dialect, silence)
    if now.trainer is None:
        return Admission(0, now.version, "no trainer has registered yet")
    rows = yield from ask("SELECT id, name, weight, minimum FROM environments")
    shares = {number: Share(float(weight), float(minimum)) for number, _, weight, minimum in rows}
    claims = {number: _claim(now, number, name, weight) for number, name, weight, _ in rows}
    claims[environment] = replace(claims[environment], wanted=wanted)
    batch_size, max_staleness = now.trainer.batch_size, now.trainer.max_staleness
    unfilled = free = max(0, limit - now.total.waiting - sum(now.running.values()))
    why: str | None = "the queue is full"
    if now.capacity is not None and now.capacity < free:
        free, why = now.capacity, "more would be too old for the trainer"
    fair = fair_room(free, claims, environment, batch_size)
    if fair < min(free, wanted):
        why = "the rest is the share of other environments"
    waiting = now.backlog.get(environment, Backlog()).waiting
    granted = room(fair, shares[environment], batch_size=batch_size, waiting=waiting, running=running)
    granted = min(wanted, unfilled, granted)
    yield from ask(
        "UPDATE environments SET running = ?, wanted = ? WHERE id = ?", running + granted, wanted - granted, environment
    )
    oldest = None if max_staleness is None else now.version - max_staleness
    return Admission(granted, now.version, why if granted < wanted else None, oldest)


def _claim(now: Status, environment: int, name: str, weight: float) -> Claim:
    """What an environment holds, and what it asked for in vain if it lives."""
    held = now.backlog.get(environment, Backlog()).waiting + now.running.get(environment, 0)
    return Claim(name, float(weight), held, now.wanted.get(environment, 0))

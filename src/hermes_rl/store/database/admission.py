"""How much more an environment may begin: asked, granted and counted in one step, so replicas cannot take it twice.

Always true: what is granted counts as running from then on, until the environment says otherwise or falls silent;
without a trainer nothing is granted, since nobody could say yet how stale is too stale.
"""

from dataclasses import dataclass

from hermes_rl.store.database.listing import Backlog, status
from hermes_rl.store.database.members import heartbeat
from hermes_rl.store.database.queue import Share, room
from hermes_rl.store.database.steps import Dialect, Steps, ask, lock


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to an environment that asks for work. `granted` is in rollouts; `waiting` is why it is not more."""

    granted: int
    version: int
    waiting: str | None


def admit(
    dialect: Dialect, environment: int, running: int, wanted: int, cursor: int | None, limit: int, silence: float
) -> Steps[Admission]:
    """Hear what runs, and grant what there is room for. `limit` bounds the rollouts that wait or run in all."""
    yield from lock(dialect)
    yield from heartbeat(dialect, environment, running, cursor)
    now = yield from status(dialect, silence)
    if now.trainer is None:
        return Admission(0, now.version, "no trainer has registered yet")
    [(weight, minimum)] = yield from ask("SELECT weight, minimum FROM environments WHERE id = ?", environment)
    share = Share(float(weight), float(minimum))
    waiting = now.backlog.get(environment, Backlog()).waiting
    free = max(0, limit - now.total.waiting - sum(now.running.values()))
    why: str | None = "the queue is full"
    if now.capacity is not None:
        fresh = room(now.capacity, share, batch_size=now.trainer.batch_size, waiting=waiting, running=running)
        if fresh < free:
            free, why = fresh, "more would be too old for the trainer"
    granted = min(wanted, free)
    if granted:
        yield from ask("UPDATE environments SET running = ? WHERE id = ?", running + granted, environment)
    return Admission(granted, now.version, why if granted < wanted else None)

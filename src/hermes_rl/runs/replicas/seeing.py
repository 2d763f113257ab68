"""What a fleet is after what is seen of it: replicas that answer, lost their life or are gone; workers that ended.

Always true: pure; a shard is free only when its worker was seen to have ended, its replica lost its life or is gone, or
was silent for too long, or when an order was never seen to be taken.
"""

from dataclasses import replace

from hermes_rl.runs.replicas.states import (
    Action,
    Close,
    Facts,
    Fleet,
    Patience,
    Replica,
    ReplicaState,
    Shard,
    ShardState,
    WorkerFacts,
)

BAD_CONFIGURATION = 2
# It will be no better for being tried again, but for a spool that its last owner has yet to let go.
COUNTS_AS = {BAD_CONFIGURATION: 3}
HELD = frozenset({ShardState.STARTING, ShardState.SERVED, ShardState.LEAVING})
# A worker that ended so was told to by somebody else, as when its machine is shut down: it has more to do.
SIGNALLED = ("SIGTERM", "SIGINT", "a signal")


def with_replicas_seen(fleet: Fleet, facts: Facts, now: float) -> tuple[Fleet, list[Action]]:
    """Replicas that answer, that have another life, that are gone or silent for too long."""
    actions: list[Action] = []
    replicas: dict[str, Replica] = {}
    shards = list(fleet.shards)
    refusals = fleet.refusals
    changed_at = fleet.changed_at

    def free_all(name: str) -> None:
        for number in fleet.of(name):
            shards[number] = _freed(shards[number], now, restarted=True)

    for name, replica in fleet.replicas.items():
        seen = facts.replicas.get(name)
        if seen is None:
            free_all(name)
            changed_at = now
            if replica.life is None:
                refusals = (*refusals, now)
        elif seen.life is None:
            if replica.state is not ReplicaState.OPENING and now - replica.heard_at > fleet.patience.silent_for:
                free_all(name)
                changed_at = now
                actions.append(Close(name))
            else:
                replicas[name] = replica
        else:
            if seen.life != replica.life:
                free_all(name)
                changed_at = now
            state = ReplicaState.OPEN if replica.state is ReplicaState.OPENING else replica.state
            since = now if state is not replica.state else replica.since
            replicas[name] = Replica(state, since, now, seen.life, seen.node)
            refusals = ()
    for name, seen in facts.replicas.items():
        if name not in fleet.replicas and seen.life is not None and not any(_is_close(one, name) for one in actions):
            # Another driver opened it, and was killed.
            replicas[name] = Replica(ReplicaState.OPEN, now, now, seen.life, seen.node)
            changed_at = now
    seen_fleet = replace(
        fleet, replicas=replicas, shards=tuple(shards), refusals=_recent(refusals, fleet, now), changed_at=changed_at
    )
    return seen_fleet, actions


def with_workers_seen(fleet: Fleet, facts: Facts, now: float) -> Fleet:
    shards = list(fleet.shards)
    for number, shard in enumerate(fleet.shards):
        if shard.state not in HELD or shard.replica is None:
            continue
        seen = facts.replicas[shard.replica]
        if seen.life is not None:
            shards[number] = _after(shard, seen.workers.get(number), fleet.patience, now)
    for name, seen in facts.replicas.items():
        for number, worker in seen.workers.items():
            if worker.running and name in fleet.replicas and number < len(shards) and _is_unclaimed(shards[number]):
                shards[number] = replace(
                    shards[number], state=ShardState.SERVED, replica=name, turn=worker.turn, since=now
                )
    return replace(fleet, shards=tuple(shards))


def _is_unclaimed(shard: Shard) -> bool:
    """Whether nobody was ever told to serve it: a driver that takes over finds its workers at work."""
    return shard.state is ShardState.FREE and shard.turn is None


def _after(  # noqa: PLR0911 (a case a line)
    shard: Shard, worker: WorkerFacts | None, patience: Patience, now: float
) -> Shard:
    """A shard after what its replica says of its worker."""
    if worker is None or worker.turn != shard.turn:
        lost = shard.state is not ShardState.STARTING or now - shard.since > patience.told_within
        return _freed(shard, now, restarted=True) if lost else shard
    if worker.running:
        if shard.state is ShardState.STARTING:
            return replace(shard, state=ShardState.SERVED, since=now)
        steady = shard.state is ShardState.SERVED and now - shard.since >= patience.steady_after
        return replace(shard, failures=(), problem=None) if steady else shard
    if worker.exit_code == 0 and shard.state is not ShardState.LEAVING and not _was_signalled(worker):
        return replace(shard, state=ShardState.DONE, replica=None, since=now, problem=None)
    if shard.state is ShardState.LEAVING:
        return _freed(shard, now)
    if worker.exit_code == 0:
        return replace(_freed(shard, now, restarted=True), not_before=now + patience.first_pause)
    failures = tuple(one for one in shard.failures if now - one < patience.window)
    failures += (now,) * COUNTS_AS.get(worker.exit_code or 0, 1)
    pause = min(patience.longest_pause, patience.first_pause * 2.0 ** (len(failures) - 1))
    freed = _freed(shard, now, restarted=True)
    return replace(freed, failures=failures, not_before=now + pause, problem=_how_it_ended(worker))


def _freed(shard: Shard, now: float, *, restarted: bool = False) -> Shard:
    if shard.state is ShardState.DONE:
        return shard
    return replace(shard, state=ShardState.FREE, replica=None, since=now, restarts=shard.restarts + restarted)


def _is_close(action: Action, name: str) -> bool:
    return isinstance(action, Close) and action.replica == name


def _recent(moments: tuple[float, ...], fleet: Fleet, now: float) -> tuple[float, ...]:
    return tuple(one for one in moments if now - one < fleet.patience.window)


def _was_signalled(worker: WorkerFacts) -> bool:
    return worker.ended is not None and worker.ended.startswith(SIGNALLED)


def _how_it_ended(worker: WorkerFacts) -> str:
    how = "it ended for no known reason" if worker.exit_code is None else f"it ended with status {worker.exit_code}"
    return f"{how}: {worker.problem}" if worker.problem else how

"""The fleet after an observation: replicas that respond, restarted or are gone; workers that exited. Pure functions.

Always true: a shard becomes free only when its worker was seen to exit, its replica restarted, is gone or was silent
for too long, or its start was never confirmed.
"""

from dataclasses import replace

from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.replicas.types import (
    Action,
    CloseReplica,
    Fleet,
    FleetFacts,
    FleetTimeouts,
    Replica,
    ReplicaState,
    Shard,
    WorkerFacts,
)

BAD_CONFIGURATION = 2
# Retrying rarely helps, except when the last owner has not released its spool yet.
FAILURE_WEIGHT = {BAD_CONFIGURATION: 3}
ASSIGNED = frozenset({UnitState.STARTING, UnitState.READY, UnitState.STOPPING})
# A worker with such an ending was stopped from outside, as when its machine shuts down; it has more to do.
SIGNAL_ENDINGS = ("SIGTERM", "SIGINT", "a signal")


def observe_replicas(fleet: Fleet, facts: FleetFacts, now: float) -> tuple[Fleet, list[Action]]:
    """Update the replicas; free the shards of those that restarted, are gone or were silent for too long."""
    actions: list[Action] = []
    replicas: dict[str, Replica] = {}
    shards = list(fleet.shards)
    open_failures = fleet.open_failures
    changed_at = fleet.changed_at

    def free_all(name: str) -> None:
        for number in fleet.shards_on(name):
            shards[number] = _free(shards[number], now, restarted=True)

    for name, replica in fleet.replicas.items():
        seen = facts.replicas.get(name)
        if seen is None:
            free_all(name)
            changed_at = now
            if replica.incarnation is None:
                open_failures = (*open_failures, now)
        elif seen.incarnation is None:
            if replica.state is not ReplicaState.OPENING and now - replica.last_seen > fleet.timeouts.silence_timeout:
                free_all(name)
                changed_at = now
                actions.append(CloseReplica(name))
            else:
                replicas[name] = replica
        else:
            if seen.incarnation != replica.incarnation:
                free_all(name)
                changed_at = now
            state = ReplicaState.OPEN if replica.state is ReplicaState.OPENING else replica.state
            since = now if state is not replica.state else replica.since
            replicas[name] = Replica(state, since, now, seen.incarnation, seen.node)
            open_failures = ()
    for name, seen in facts.replicas.items():
        if name not in fleet.replicas and seen.incarnation is not None and CloseReplica(name) not in actions:
            # Left by a driver that was killed.
            replicas[name] = Replica(ReplicaState.OPEN, now, now, seen.incarnation, seen.node)
            changed_at = now
    seen_fleet = replace(
        fleet,
        replicas=replicas,
        shards=tuple(shards),
        open_failures=_recent(open_failures, fleet.timeouts, now),
        changed_at=changed_at,
    )
    return seen_fleet, actions


def observe_workers(fleet: Fleet, facts: FleetFacts, now: float) -> Fleet:
    shards = list(fleet.shards)
    for number, shard in enumerate(fleet.shards):
        if shard.state not in ASSIGNED or shard.replica is None:
            continue
        seen = facts.replicas[shard.replica]
        if seen.incarnation is not None:
            shards[number] = _observe_shard(shard, seen.workers.get(number), fleet.timeouts, now)
    for name, seen in facts.replicas.items():
        for number, worker in seen.workers.items():
            if worker.running and name in fleet.replicas and number < len(shards) and _is_unclaimed(shards[number]):
                shards[number] = replace(
                    shards[number], state=UnitState.READY, replica=name, launch_id=worker.launch_id, since=now
                )
    return replace(fleet, shards=tuple(shards))


def _is_unclaimed(shard: Shard) -> bool:
    """Whether it was never assigned: a driver that takes over finds workers already running."""
    return shard.state is UnitState.WAITING and shard.launch_id is None


def _observe_shard(  # noqa: PLR0911 (a case a line)
    shard: Shard, worker: WorkerFacts | None, timeouts: FleetTimeouts, now: float
) -> Shard:
    """The shard after its replica's report on its worker."""
    if worker is None or worker.launch_id != shard.launch_id:
        lost = shard.state is not UnitState.STARTING or now - shard.since > timeouts.start_timeout
        return _free(shard, now, restarted=True) if lost else shard
    if worker.running:
        if shard.state is UnitState.STARTING:
            return replace(shard, state=UnitState.READY, since=now)
        steady = shard.state is UnitState.READY and now - shard.since >= timeouts.steady_after
        return replace(shard, failures=(), problem=None) if steady else shard
    if worker.exit_code == 0 and shard.state is not UnitState.STOPPING and not _was_signalled(worker):
        return replace(shard, state=UnitState.EXITED, replica=None, since=now, problem=None)
    if shard.state is UnitState.STOPPING:
        return _free(shard, now)
    if worker.exit_code == 0:
        return replace(_free(shard, now, restarted=True), not_before=now + timeouts.first_pause)
    failures = _recent(shard.failures, timeouts, now)
    failures += (now,) * FAILURE_WEIGHT.get(worker.exit_code or 0, 1)
    backoff = min(timeouts.longest_pause, timeouts.first_pause * 2.0 ** (len(failures) - 1))
    freed = _free(shard, now, restarted=True)
    return replace(freed, failures=failures, not_before=now + backoff, problem=_describe_exit(worker))


def _free(shard: Shard, now: float, *, restarted: bool = False) -> Shard:
    if shard.state is UnitState.EXITED:
        return shard
    return replace(shard, state=UnitState.WAITING, replica=None, since=now, restarts=shard.restarts + restarted)


def _recent(times: tuple[float, ...], timeouts: FleetTimeouts, now: float) -> tuple[float, ...]:
    return tuple(at for at in times if now - at < timeouts.window)


def _was_signalled(worker: WorkerFacts) -> bool:
    return worker.ended is not None and worker.ended.startswith(SIGNAL_ENDINGS)


def _describe_exit(worker: WorkerFacts) -> str:
    how = "ended for an unknown reason" if worker.exit_code is None else f"exited with status {worker.exit_code}"
    return f"{how}: {worker.problem}" if worker.problem else how

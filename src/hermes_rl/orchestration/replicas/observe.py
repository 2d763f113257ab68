"""The fleet after an observation: replicas that respond, restarted or are gone; workers that exited. Pure functions.

Always true: a shard becomes free only when its worker was seen to exit, its replica restarted, is gone or was silent
for too long, or its start was never confirmed.
"""

from dataclasses import replace

from hermes_rl.core.exit_codes import BAD_CONFIGURATION, LIMIT_REACHED
from hermes_rl.orchestration.reconciler.unit import (
    UnitState,
    after_failure,
    after_ready,
    describe_exit,
)
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

# Retrying rarely helps, except when the last owner has not released its spool yet.
FAILURE_WEIGHT = {BAD_CONFIGURATION: 3}
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
        open_failures=fleet.timeouts.recent(open_failures, now),
        changed_at=changed_at,
    )
    return seen_fleet, actions


def observe_workers(fleet: Fleet, facts: FleetFacts, now: float) -> Fleet:
    shards = list(fleet.shards)
    for number, shard in enumerate(fleet.shards):
        if shard.replica is None:
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


def _observe_shard(shard: Shard, worker: WorkerFacts | None, timeouts: FleetTimeouts, now: float) -> Shard:
    """The shard after its replica's report on its worker."""
    if worker is None or worker.launch_id != shard.launch_id:
        lost = shard.state is not UnitState.STARTING or now - shard.since > timeouts.start_timeout
        return _free(shard, now, restarted=True) if lost else shard
    if worker.running:
        return after_ready(timeouts, shard, now)
    if shard.state is UnitState.STOPPING:
        return _free(shard, now)
    if worker.exit_code == 0 and _was_signalled(worker):
        return replace(_free(shard, now, restarted=True), not_before=now + timeouts.first_pause)
    shard = replace(shard, replica=None)
    if worker.exit_code in {0, LIMIT_REACHED}:
        return replace(shard, state=UnitState.EXITED, since=now, done=True, problem=None)
    problem = describe_exit(worker.exit_code, worker.problem, unknown="ended for an unknown reason")
    return after_failure(timeouts, shard, now, problem, FAILURE_WEIGHT.get(worker.exit_code or 0, 1))


def _free(shard: Shard, now: float, *, restarted: bool = False) -> Shard:
    return replace(shard, state=UnitState.WAITING, replica=None, since=now, restarts=shard.restarts + restarted)


def _was_signalled(worker: WorkerFacts) -> bool:
    return worker.ended is not None and worker.ended.startswith(SIGNAL_ENDINGS)

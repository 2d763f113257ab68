"""The fleet scheduler: which replica has which shard, and which replicas and workers to start and stop. Pure functions.

Always true: a shard is started only when no known worker serves it: its worker was seen to exit, or its replica
restarted, is gone, or was silent for too long; a shard is moved only by draining it; an action without visible effect
is repeated; an ending is final.

The trajectory API stores a shard's progress: a new worker asks it which draws are done.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.replicas.observe import observe_replicas, observe_workers
from hermes_rl.orchestration.replicas.types import (
    Action,
    CloseReplica,
    DrainWorker,
    Ending,
    Fleet,
    FleetFacts,
    KillWorker,
    OpenReplica,
    Replica,
    ReplicaFacts,
    ReplicaState,
    Shard,
    StartWorker,
)


def decide(fleet: Fleet, facts: FleetFacts, now: float) -> tuple[Fleet, tuple[Action, ...]]:
    """`now` is a monotonic clock in seconds."""
    fleet, lost = observe_replicas(fleet, facts, now)
    fleet = observe_workers(fleet, facts, now)
    fleet = _decide_ending(fleet, facts)
    fleet, counted = _scale(fleet, facts, now)
    fleet, drained = _drain(fleet, facts, now)
    fleet, started = _assign_shards(fleet, facts, now)
    fleet, closed = _close_drained(fleet, facts, now)
    strays = list(_kill_strays(fleet, facts))
    return fleet, (*lost, *strays, *counted, *drained, *started, *closed)


def _decide_ending(fleet: Fleet, facts: FleetFacts) -> Fleet:
    """Decide whether the fleet goes on, or how it ends."""
    if fleet.ending is not None:
        return fleet
    if facts.stop or facts.abort:
        return replace(fleet, ending=Ending.STOPPED, reason="stopped by request")
    if all(shard.done for shard in fleet.shards):
        return replace(fleet, ending=Ending.DONE, reason="every shard is done")
    for number, shard in enumerate(fleet.shards):
        if shard.fatal:
            return replace(fleet, ending=Ending.FAILED, reason=f"shard {number}: {shard.problem}")
    if len(fleet.open_failures) > fleet.timeouts.most_failures:
        why = facts.problem or "unknown reason"
        return replace(fleet, ending=Ending.FAILED, reason=f"could not open any replica: {why}")
    return fleet


def _scale(fleet: Fleet, facts: FleetFacts, now: float) -> tuple[Fleet, list[Action]]:
    """Open or close replicas to match the desired number."""
    replicas = dict(fleet.replicas)
    wanted = 0 if fleet.ending is not None else facts.wanted
    for name in facts.leaving & replicas.keys():
        replicas[name] = _closing(replicas[name], now)
    staying = [name for name, replica in replicas.items() if replica.state is not ReplicaState.CLOSING]
    # Close those that wait for resources first, then those with the fewest shards, then the newest.
    staying.sort(
        key=lambda name: (replicas[name].incarnation is not None, len(fleet.shards_on(name)), -replicas[name].since)
    )
    for name in staying[: max(0, len(staying) - wanted)]:
        replicas[name] = _closing(replicas[name], now)
    actions: list[Action] = []
    opened = fleet.opened
    failures = fleet.open_failures
    if len(staying) < wanted and (not failures or now >= failures[-1] + fleet.timeouts.pause(failures)):
        for _ in range(wanted - len(staying)):
            opened += 1
            while f"replica-{opened}" in facts.replicas:
                opened += 1
            name = f"replica-{opened}"
            replicas[name] = Replica(ReplicaState.OPENING, now, now)
            actions.append(OpenReplica(name))
    changed = replicas.keys() != fleet.replicas.keys()
    changed_at = now if changed else fleet.changed_at
    return replace(fleet, replicas=replicas, opened=opened, changed_at=changed_at), actions


def _drain(fleet: Fleet, facts: FleetFacts, now: float) -> tuple[Fleet, list[Action]]:
    """Drain shards of closing replicas and shards to be moved; kill those that take too long."""
    shards = list(fleet.shards)
    actions: list[Action] = []
    moving = set(_shards_to_move(fleet, facts, now))
    for number, shard in enumerate(shards):
        if shard.replica is None or shard.launch_id is None:
            continue
        if shard.state is UnitState.STOPPING:
            if facts.abort or now - shard.since > fleet.timeouts.drain_timeout:
                actions.append(KillWorker(shard.replica, number, shard.launch_id))
            elif not _is_responding(facts, shard.replica):
                continue
            else:
                # Repeated each time, since a lost request would only be noticed at the drain timeout.
                actions.append(DrainWorker(shard.replica, number, shard.launch_id))
        elif number in moving or fleet.replicas[shard.replica].state is ReplicaState.CLOSING:
            shards[number] = replace(shard, state=UnitState.STOPPING, since=now)
            actions.append(DrainWorker(shard.replica, number, shard.launch_id))
    return replace(fleet, shards=tuple(shards)), actions


def _shards_to_move(fleet: Fleet, facts: FleetFacts, now: float) -> Iterator[int]:
    """The shards to move for an even spread, once the fleet has been stable for a while."""
    staying = _staying(fleet)
    unsettled = any(shard.state not in {UnitState.READY, UnitState.EXITED} for shard in fleet.shards)
    quiet = now - fleet.changed_at >= fleet.timeouts.rebalance_delay
    if fleet.ending is not None or unsettled or not quiet or not all(_is_open(fleet, facts, name) for name in staying):
        return
    has = {name: fleet.shards_on(name) for name in staying}
    while has:
        fullest, emptiest = max(has, key=lambda name: len(has[name])), min(has, key=lambda name: len(has[name]))
        if len(has[fullest]) - len(has[emptiest]) < 2:
            return
        number = has[fullest].pop()
        has[emptiest].insert(0, number)
        yield number


def _assign_shards(fleet: Fleet, facts: FleetFacts, now: float) -> tuple[Fleet, list[Action]]:
    """Assign free shards to the replicas with the fewest."""
    if fleet.ending is not None:
        return fleet, []
    staying = _staying(fleet)
    able = [name for name in staying if _is_open(fleet, facts, name)]
    unfinished = sum(not shard.done for shard in fleet.shards)
    share = ceil(unfinished / max(1, len(staying)))
    load = Counter(shard.replica for shard in fleet.shards if shard.replica is not None)
    shards, launches = list(fleet.shards), fleet.launches
    actions: list[Action] = []
    for number, shard in enumerate(shards):
        if shard.state is not UnitState.WAITING or now < shard.not_before or not able:
            continue
        name = min(able, key=lambda candidate: (load[candidate], candidate))
        waited = now - max(shard.since, fleet.changed_at)
        if load[name] >= share and waited < fleet.timeouts.placement_wait and len(able) < len(staying):
            continue
        launches += 1
        launch_id = f"{fleet.launch_prefix}-{launches}"
        shards[number] = replace(shard, state=UnitState.STARTING, replica=name, launch_id=launch_id, since=now)
        load[name] += 1
        actions.append(StartWorker(name, number, launch_id))
    return replace(fleet, shards=tuple(shards), launches=launches), actions


def _close_drained(fleet: Fleet, facts: FleetFacts, now: float) -> tuple[Fleet, list[Action]]:
    """Close replicas that are closing and have no worker left."""
    replicas = dict(fleet.replicas)
    actions: list[Action] = []
    for name, replica in fleet.replicas.items():
        seen = facts.replicas.get(name, ReplicaFacts())
        busy = fleet.shards_on(name) or any(worker.running for worker in seen.workers.values())
        if replica.state is ReplicaState.CLOSING and not busy:
            del replicas[name]
            actions.append(CloseReplica(name))
    changed_at = now if actions else fleet.changed_at
    return replace(fleet, replicas=replicas, changed_at=changed_at), actions


def _kill_strays(fleet: Fleet, facts: FleetFacts) -> Iterator[Action]:
    """Kill workers whose shard was reassigned: their start was assumed lost, or an earlier driver started them."""
    for name, seen in facts.replicas.items():
        for number, worker in seen.workers.items():
            shard = fleet.shards[number] if number < len(fleet.shards) else Shard()
            if worker.running and (shard.replica, shard.launch_id) != (name, worker.launch_id):
                yield KillWorker(name, number, worker.launch_id)


def _staying(fleet: Fleet) -> list[str]:
    return [name for name, replica in fleet.replicas.items() if replica.state is not ReplicaState.CLOSING]


def _closing(replica: Replica, now: float) -> Replica:
    return replica if replica.state is ReplicaState.CLOSING else replace(replica, state=ReplicaState.CLOSING, since=now)


def _is_open(fleet: Fleet, facts: FleetFacts, name: str) -> bool:
    return fleet.replicas[name].state is ReplicaState.OPEN and _is_responding(facts, name)


def _is_responding(facts: FleetFacts, name: str) -> bool:
    return facts.replicas.get(name, ReplicaFacts()).incarnation is not None

"""Which replica has which shard, and what is opened, started, drained, killed and closed: decided, nothing done.

Always true: a shard is started only when nobody is known to serve it, so on a replica that was seen to have ended its
worker, lost its life, or been silent for too long; a shard is moved only by draining it; what was ordered and is not
seen is ordered again; an end is never taken back.

The items of a shard are the API's to remember: whoever is given the shard asks it which draws are done.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil

from hermes_rl.runs.replicas.seeing import with_replicas_seen, with_workers_seen
from hermes_rl.runs.replicas.states import (
    Action,
    Close,
    Drain,
    Ending,
    Facts,
    Fleet,
    Kill,
    Open,
    Replica,
    ReplicaFacts,
    ReplicaState,
    Shard,
    ShardState,
    Start,
)


def decide(fleet: Fleet, facts: Facts, now: float) -> tuple[Fleet, tuple[Action, ...]]:
    """`now` counts in seconds from any beginning, and never goes back."""
    fleet, lost = with_replicas_seen(fleet, facts, now)
    fleet = with_workers_seen(fleet, facts, now)
    fleet = _directed(fleet, facts)
    fleet, counted = _counted(fleet, facts, now)
    fleet, drained = _drained(fleet, facts, now)
    fleet, started = _placed(fleet, facts, now)
    fleet, closed = _closed(fleet, facts, now)
    strays = list(_strays(fleet, facts))
    return fleet, (*lost, *strays, *counted, *drained, *started, *closed)


def _directed(fleet: Fleet, facts: Facts) -> Fleet:
    """Whether it goes on, or to which end."""
    if fleet.ending is not None:
        return fleet
    if facts.stop or facts.hurry:
        return replace(fleet, ending=Ending.STOPPED, reason="stopped as asked")
    if all(shard.state is ShardState.DONE for shard in fleet.shards):
        return replace(fleet, ending=Ending.DONE, reason="every shard ended with no more to do")
    most = fleet.patience.most_failures
    for number, shard in enumerate(fleet.shards):
        if len(shard.failures) > most:
            return replace(fleet, ending=Ending.FAILED, reason=f"shard {number}: {shard.problem}")
    if len(fleet.refusals) > most:
        why = facts.problem or "nobody said why"
        return replace(fleet, ending=Ending.FAILED, reason=f"no replica could be opened: {why}")
    return fleet


def _counted(fleet: Fleet, facts: Facts, now: float) -> tuple[Fleet, list[Action]]:
    """As many replicas as are wanted: others are opened, or told to close."""
    replicas = dict(fleet.replicas)
    wanted = 0 if fleet.ending is not None else facts.wanted
    for name in facts.leaving & replicas.keys():
        replicas[name] = _closing(replicas[name], now)
    staying = [name for name, replica in replicas.items() if replica.state is not ReplicaState.CLOSING]
    # Those that wait for room go first, then those with the fewest shards, then the youngest.
    staying.sort(key=lambda name: (replicas[name].life is not None, len(fleet.of(name)), -replicas[name].since))
    for name in staying[: max(0, len(staying) - wanted)]:
        replicas[name] = _closing(replicas[name], now)
    actions: list[Action] = []
    opened = fleet.opened
    if len(staying) < wanted and now >= _may_open_at(fleet):
        for _ in range(wanted - len(staying)):
            opened += 1
            while f"replica-{opened}" in facts.replicas:
                opened += 1
            name = f"replica-{opened}"
            replicas[name] = Replica(ReplicaState.OPENING, now, now)
            actions.append(Open(name))
    changed = replicas.keys() != fleet.replicas.keys()
    changed_at = now if changed else fleet.changed_at
    return replace(fleet, replicas=replicas, opened=opened, changed_at=changed_at), actions


def _drained(fleet: Fleet, facts: Facts, now: float) -> tuple[Fleet, list[Action]]:
    """Shards that have to leave where they are, for good or to be moved; those that take too long are killed."""
    shards = list(fleet.shards)
    actions: list[Action] = []
    movers = set(_to_be_moved(fleet, facts, now))
    for number, shard in enumerate(shards):
        if shard.replica is None or shard.turn is None:
            continue
        if shard.state is ShardState.LEAVING:
            if facts.hurry or now - shard.since > fleet.patience.drain_within:
                actions.append(Kill(shard.replica, number, shard.turn))
            elif not _hears(facts, shard.replica):
                continue
            else:
                # Said again each time: a drain that reached nobody would be waited for until it is overdue.
                actions.append(Drain(shard.replica, number, shard.turn))
        elif number in movers or fleet.replicas[shard.replica].state is ReplicaState.CLOSING:
            shards[number] = replace(shard, state=ShardState.LEAVING, since=now)
            actions.append(Drain(shard.replica, number, shard.turn))
    return replace(fleet, shards=tuple(shards)), actions


def _to_be_moved(fleet: Fleet, facts: Facts, now: float) -> Iterator[int]:
    """Those whose move evens out the replicas, once all has been quiet for a while."""
    staying = [name for name, one in fleet.replicas.items() if one.state is not ReplicaState.CLOSING]
    unsettled = any(shard.state not in {ShardState.SERVED, ShardState.DONE} for shard in fleet.shards)
    quiet = now - fleet.changed_at >= fleet.patience.settled_after
    if fleet.ending is not None or unsettled or not quiet or not all(_is_open(fleet, facts, name) for name in staying):
        return
    has = {name: fleet.of(name) for name in staying}
    while has:
        fullest, emptiest = max(has, key=lambda name: len(has[name])), min(has, key=lambda name: len(has[name]))
        if len(has[fullest]) - len(has[emptiest]) < 2:
            return
        number = has[fullest].pop()
        has[emptiest].insert(0, number)
        yield number


def _placed(fleet: Fleet, facts: Facts, now: float) -> tuple[Fleet, list[Action]]:
    """Free shards to the replicas that have the fewest."""
    if fleet.ending is not None:
        return fleet, []
    staying = [name for name, one in fleet.replicas.items() if one.state is not ReplicaState.CLOSING]
    able = [name for name in staying if _is_open(fleet, facts, name)]
    left = sum(shard.state is not ShardState.DONE for shard in fleet.shards)
    share = ceil(left / max(1, len(staying)))
    has = Counter(shard.replica for shard in fleet.shards if shard.replica is not None)
    shards, turns = list(fleet.shards), fleet.turns
    actions: list[Action] = []
    for number, shard in enumerate(shards):
        if shard.state is not ShardState.FREE or now < shard.not_before or not able:
            continue
        name = min(able, key=lambda one: (has[one], one))
        waited = now - max(shard.since, fleet.changed_at)
        if has[name] >= share and waited < fleet.patience.room_within and len(able) < len(staying):
            continue
        turns += 1
        turn = f"{fleet.era}-{turns}"
        shards[number] = replace(shard, state=ShardState.STARTING, replica=name, turn=turn, since=now)
        has[name] += 1
        actions.append(Start(name, number, turn))
    return replace(fleet, shards=tuple(shards), turns=turns), actions


def _closed(fleet: Fleet, facts: Facts, now: float) -> tuple[Fleet, list[Action]]:
    """Replicas that are to close and have nothing left."""
    replicas = dict(fleet.replicas)
    actions: list[Action] = []
    for name, replica in fleet.replicas.items():
        seen = facts.replicas.get(name, ReplicaFacts())
        busy = fleet.of(name) or any(worker.running for worker in seen.workers.values())
        if replica.state is ReplicaState.CLOSING and not busy:
            del replicas[name]
            actions.append(Close(name))
    changed_at = now if actions else fleet.changed_at
    return replace(fleet, replicas=replicas, changed_at=changed_at), actions


def _strays(fleet: Fleet, facts: Facts) -> Iterator[Action]:
    """Workers whose shard is another's by now: of an order that was taken for lost, or an earlier driver's."""
    for name, seen in facts.replicas.items():
        for number, worker in seen.workers.items():
            shard = fleet.shards[number] if number < len(fleet.shards) else Shard()
            if worker.running and (shard.replica, shard.turn) != (name, worker.turn):
                yield Kill(name, number, worker.turn)


def _closing(replica: Replica, now: float) -> Replica:
    return replica if replica.state is ReplicaState.CLOSING else replace(replica, state=ReplicaState.CLOSING, since=now)


def _is_open(fleet: Fleet, facts: Facts, name: str) -> bool:
    return fleet.replicas[name].state is ReplicaState.OPEN and _hears(facts, name)


def _hears(facts: Facts, name: str) -> bool:
    return facts.replicas.get(name, ReplicaFacts()).life is not None


def _may_open_at(fleet: Fleet) -> float:
    if not fleet.refusals:
        return 0.0
    pause = fleet.patience.first_pause * 2.0 ** (len(fleet.refusals) - 1)
    return fleet.refusals[-1] + min(fleet.patience.longest_pause, pause)


def standing(fleet: Fleet) -> Mapping[str, int]:
    """The shards by state."""
    return Counter(str(shard.state) for shard in fleet.shards)

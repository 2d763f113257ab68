"""The decisions against a world that loses, restarts and hides replicas at random.

The world knows what truly runs; the fleet is told only what a driver could see, and its orders may reach nobody.
"""

import random
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.replicas.scheduler import decide
from hermes_rl.orchestration.replicas.types import (
    Action,
    CloseReplica,
    DrainWorker,
    Fleet,
    FleetFacts,
    FleetTimeouts,
    KillWorker,
    OpenReplica,
    ReplicaFacts,
    ReplicaState,
    StartWorker,
    WorkerFacts,
)

PATIENCE = FleetTimeouts(
    drain_timeout=12.0, silence_timeout=8.0, start_timeout=4.0, placement_wait=4.0, rebalance_delay=2.0
)
FAULTY, QUIET = 60, 120


@dataclass
class Worker:
    turn: str
    running: bool = True
    exit_code: int | None = None
    ended: str | None = None
    ends_at: float | None = None
    """When it will have finished what is in flight."""

    def facts(self) -> WorkerFacts:
        return WorkerFacts(self.turn, self.running, self.exit_code, self.ended)

    def end(self, code: int, ended: str | None = None) -> None:
        if self.running:
            self.running, self.exit_code, self.ended = False, code, ended


@dataclass
class Host:
    life: int
    placed_at: float
    hidden_until: float = 0.0
    workers: dict[int, Worker] = field(default_factory=dict)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.hosts: dict[str, Host] = {}
        self.lost: list[Host] = []
        """Given up while nobody could see them: their workers go on for a while."""
        self.lives = 0
        self.wanted = 3
        self.doubled = 0

    def answers(self, host: Host) -> bool:
        return self.now >= host.placed_at and self.now >= host.hidden_until

    def facts(self) -> FleetFacts:
        seen = {}
        for name, host in self.hosts.items():
            workers = {shard: worker.facts() for shard, worker in host.workers.items()}
            seen[name] = ReplicaFacts(f"life {host.life}", "node", workers) if self.answers(host) else ReplicaFacts()
        return FleetFacts(seen, self.wanted)

    def do(self, action: Action) -> None:
        match action:
            case OpenReplica(name):
                assert name not in self.hosts
                self.lives += 1
                self.hosts[name] = Host(self.lives, self.now + self.random.randrange(3))
            case CloseReplica(name):
                host = self.hosts.pop(name)
                if not self.answers(host):
                    self.lost.append(host)
            case StartWorker(name, shard, turn):
                self.check_alone(name, shard)
                host = self.hosts[name]
                if self.answers(host) and self.random.random() > 0.1:
                    host.workers[shard] = Worker(turn)
            case DrainWorker(name, shard, turn):
                self.with_worker(name, shard, turn, self.drained)
            case KillWorker(name, shard, turn):
                self.with_worker(name, shard, turn, lambda worker: worker.end(-9))

    def with_worker(self, name: str, shard: int, turn: str, act: object) -> None:
        host = self.hosts.get(name)
        worker = host.workers.get(shard) if host else None
        if host and worker and worker.turn == turn and self.answers(host):
            assert callable(act)
            act(worker)

    def drained(self, worker: Worker) -> None:
        if worker.ends_at is None:
            worker.ends_at = self.now + self.random.choice([0, 1, 3, 100])

    def check_alone(self, name: str, shard: int) -> None:
        """Who is started is alone, as far as anybody can know: the rest is on hosts that were given up."""
        for host in self.hosts.values():
            worker = host.workers.get(shard)
            assert worker is None or not worker.running, f"{shard} is started on {name} while it is served"

    def pass_second(self) -> None:
        self.now += 1.0
        for host in self.hosts.values():
            for worker in host.workers.values():
                if worker.ends_at is not None and self.now >= worker.ends_at:
                    worker.end(0, "SIGTERM")
        if self.lost and self.random.random() < 0.3:
            self.lost.pop()

    def fault(self) -> None:
        if not self.hosts:
            return
        name = self.random.choice(sorted(self.hosts))
        host = self.hosts[name]
        match self.random.choice(["gone", "restarted", "hidden", "crash", "signal", "resize", "none", "none"]):
            case "gone":
                del self.hosts[name]
            case "restarted":
                self.lives += 1
                self.hosts[name] = Host(self.lives, self.now + self.random.randrange(6))
            case "hidden":
                host.hidden_until = self.now + self.random.randrange(14)
            case "crash" if host.workers:
                self.random.choice(list(host.workers.values())).end(1)
            case "signal" if host.workers:
                self.random.choice(list(host.workers.values())).end(0, "SIGTERM")
            case "resize":
                self.wanted = self.random.randrange(6)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), shards=st.integers(1, 9))
def test_no_shard_is_served_twice_and_all_are_served_once_the_faults_end(seed: int, shards: int) -> None:
    world = World(seed)
    fleet = Fleet.new(shards, "era", replace(PATIENCE, most_failures=10**6))
    for second in range(FAULTY + QUIET):
        if second < FAULTY:
            world.fault()
        elif second == FAULTY:
            world.wanted = 3
        world.pass_second()
        fleet, actions = decide(fleet, world.facts(), world.now)
        for action in actions:
            world.do(action)
    served = sorted(shard for host in world.hosts.values() for shard, worker in host.workers.items() if worker.running)
    assert served == list(range(shards))
    assert all(shard.state is UnitState.READY for shard in fleet.shards)
    assert [one.state for one in fleet.replicas.values()] == [ReplicaState.OPEN] * 3
    counts = [len(fleet.shards_on(name)) for name in fleet.replicas]
    assert max(counts) - min(counts) <= 1


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), hurry_after=st.integers(0, 20))
def test_a_stop_ends_within_its_deadlines_whatever_happens(seed: int, hurry_after: int) -> None:
    world = World(seed)
    fleet = Fleet.new(4, "era", PATIENCE)
    for _ in range(20):
        world.pass_second()
        fleet, actions = decide(fleet, world.facts(), world.now)
        for action in actions:
            world.do(action)
    for second in range(60):
        if second < 10:
            world.fault()
        world.pass_second()
        facts = world.facts()
        stopping = FleetFacts(facts.replicas, world.wanted, stop=True, abort=second >= hurry_after)
        fleet, actions = decide(fleet, stopping, world.now)
        assert not any(isinstance(action, StartWorker | OpenReplica) for action in actions)
        for action in actions:
            world.do(action)
    assert fleet.over
    assert not world.hosts

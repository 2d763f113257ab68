"""What becomes of shards and replicas, decided from facts."""

from collections.abc import Mapping
from dataclasses import replace

from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.replicas.scheduler import decide
from hermes_rl.orchestration.replicas.types import (
    Action,
    CloseReplica,
    DrainWorker,
    Ending,
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

PATIENCE = FleetTimeouts()


class Played:
    """A fleet that is told facts second by second; replicas do what they are told unless a test says otherwise."""

    def __init__(self, shards: int, wanted: int) -> None:
        self.fleet = Fleet.new(shards, "era", PATIENCE)
        self.wanted = wanted
        self.now = 100.0
        self.seen: dict[str, ReplicaFacts] = {}
        self.leaving: frozenset[str] = frozenset()
        self.stop = self.abort = False
        self.room = 99
        self.actions: list[Action] = []

    def step(self, seconds: float = 1.0) -> list[Action]:
        self.now += seconds
        facts = FleetFacts(dict(self.seen), self.wanted, self.leaving, self.stop, self.abort)
        self.fleet, actions = decide(self.fleet, facts, self.now)
        for action in actions:
            self._do(action)
        self.actions += actions
        return list(actions)

    def settle(self, steps: int = 30) -> None:
        for _ in range(steps):
            self.step()

    def _do(self, action: Action) -> None:
        match action:
            case OpenReplica(name):
                answers = sum(one.incarnation is not None for one in self.seen.values()) < self.room
                self.seen[name] = ReplicaFacts(f"life of {name}" if answers else None, f"node of {name}")
            case CloseReplica(name):
                self.seen.pop(name, None)
            case StartWorker(name, shard, launch_id):
                self.worker(name, shard, WorkerFacts(launch_id, running=True))
            case DrainWorker(name, shard, launch_id):
                if self.seen[name].workers[shard].running:
                    self.worker(name, shard, WorkerFacts(launch_id, running=False, exit_code=0, ended="SIGTERM"))
            case KillWorker(name, shard, launch_id):
                self.worker(name, shard, WorkerFacts(launch_id, running=False, exit_code=-9))

    def worker(self, name: str, shard: int, facts: WorkerFacts) -> None:
        one = self.seen[name]
        self.seen[name] = replace(one, workers={**one.workers, shard: facts})

    def ends(self, shard: int, code: int, ended: str | None = None) -> None:
        held = self.fleet.shards[shard]
        assert held.replica and held.launch_id
        self.worker(held.replica, shard, WorkerFacts(held.launch_id, running=False, exit_code=code, ended=ended))

    def restarted(self, name: str) -> None:
        """As Ray does with an actor whose node is gone: it is there again and knows nothing."""
        self.seen[name] = ReplicaFacts(f"another life of {name}", "another node")

    def silent(self, name: str) -> None:
        self.seen[name] = ReplicaFacts()

    @property
    def held(self) -> Mapping[str, list[int]]:
        return {name: self.fleet.shards_on(name) for name in self.fleet.replicas}

    def starts(self, shard: int) -> int:
        return sum(isinstance(one, StartWorker) and one.shard == shard for one in self.actions)


def running(shards: int, wanted: int) -> Played:
    played = Played(shards, wanted)
    played.settle()
    assert all(shard.state is UnitState.READY for shard in played.fleet.shards)
    return played


def test_shards_are_spread_evenly_and_each_is_started_once() -> None:
    played = running(shards=7, wanted=3)
    assert sorted(map(len, played.held.values())) == [2, 2, 3]
    assert all(played.starts(shard) == 1 for shard in range(7))


def test_a_replica_that_waits_for_room_keeps_no_shard_waiting_for_long() -> None:
    played = Played(shards=4, wanted=2)
    played.room = 1
    played.step()
    played.step()
    assert played.held["replica-1"] == [0, 1]
    played.settle(15)
    assert played.held["replica-1"] == [0, 1, 2, 3]


def test_the_shards_of_a_restarted_replica_are_started_again() -> None:
    played = running(shards=4, wanted=2)
    lost = played.held["replica-2"]
    played.restarted("replica-2")
    actions = played.step()
    assert {action.shard for action in actions if isinstance(action, StartWorker)} == set(lost)
    assert all(not played.fleet.shards[shard].failures for shard in lost)


def test_the_shards_of_a_replica_that_is_gone_go_on_elsewhere_and_another_is_opened() -> None:
    played = running(shards=4, wanted=2)
    played.room = 1
    del played.seen["replica-2"]
    assert OpenReplica("replica-3") in played.step()
    played.settle(20)
    assert played.held["replica-1"] == [0, 1, 2, 3]


def test_nothing_is_started_for_a_silent_replica_before_it_is_given_up() -> None:
    played = running(shards=2, wanted=2)
    played.silent("replica-2")
    before = len(played.actions)
    for _ in range(int(PATIENCE.silence_timeout)):
        played.step()
    assert not any(isinstance(action, StartWorker) for action in played.actions[before:])
    actions = played.step() + played.step()
    assert CloseReplica("replica-2") in actions
    assert any(isinstance(action, StartWorker) for action in played.actions[before:])


def test_a_replica_that_answers_again_in_time_keeps_its_shards() -> None:
    played = running(shards=2, wanted=2)
    seen = played.seen["replica-2"]
    played.silent("replica-2")
    played.settle(int(PATIENCE.silence_timeout) - 5)
    played.seen["replica-2"] = seen
    played.settle()
    assert [played.starts(shard) for shard in range(2)] == [1, 1]


def test_an_order_that_reached_nobody_is_given_again() -> None:
    played = Played(shards=1, wanted=1)
    played.step()
    played.step()
    played.seen["replica-1"] = replace(played.seen["replica-1"], workers={})
    played.settle(int(PATIENCE.start_timeout) + 3)
    assert played.starts(0) == 2
    assert played.fleet.shards[0].state is UnitState.READY


def test_a_worker_of_an_order_that_was_taken_for_lost_is_killed() -> None:
    played = running(shards=1, wanted=1)
    launch_id = played.fleet.shards[0].launch_id
    played.worker("replica-1", 0, WorkerFacts("of another driver", running=True))
    actions = played.step()
    assert KillWorker("replica-1", 0, "of another driver") in actions
    assert launch_id is not None


def test_more_replicas_take_shards_by_draining_them_first() -> None:
    played = running(shards=6, wanted=2)
    played.wanted = 3
    played.settle()
    assert sorted(map(len, played.held.values())) == [2, 2, 2]
    moved = [action.shard for action in played.actions if isinstance(action, DrainWorker)]
    assert sorted(played.starts(shard) for shard in range(6)) == [1, 1, 1, 1, 2, 2]
    assert {shard for shard in range(6) if played.starts(shard) == 2} == set(moved)


def test_fewer_replicas_leave_by_draining_and_are_closed_when_nothing_is_left() -> None:
    played = running(shards=6, wanted=3)
    played.wanted = 1
    first = played.step()
    assert not any(isinstance(action, CloseReplica) for action in first)
    assert sum(isinstance(action, DrainWorker) for action in first) == 4
    played.settle()
    assert list(played.held.values()) == [[0, 1, 2, 3, 4, 5]]


def test_no_replicas_wanted_is_a_pause() -> None:
    played = running(shards=2, wanted=2)
    played.wanted = 0
    played.settle()
    assert played.fleet.replicas == {}
    assert not played.fleet.over
    played.wanted = 1
    played.settle()
    assert list(played.held.values()) == [[0, 1]]


def test_a_drained_replica_is_replaced() -> None:
    played = running(shards=2, wanted=2)
    played.leaving = frozenset({"replica-1"})
    played.settle()
    assert sorted(played.held) == ["replica-2", "replica-3"]
    assert sorted(map(len, played.held.values())) == [1, 1]


def test_a_worker_that_does_not_end_in_time_is_killed() -> None:
    played = running(shards=1, wanted=1)
    held = played.fleet.shards[0]
    assert held.launch_id is not None
    played.stop = True
    played.step()
    played.worker("replica-1", 0, WorkerFacts(held.launch_id, running=True))
    played._do = lambda action: None  # type: ignore[method-assign]
    played.settle(int(PATIENCE.drain_timeout) + 2)
    assert KillWorker("replica-1", 0, held.launch_id) in played.step()


def test_a_shard_that_ended_by_itself_is_not_started_again_and_all_of_them_end_the_fleet() -> None:
    played = running(shards=2, wanted=2)
    played.ends(0, 0, "there are no more items")
    played.settle()
    assert played.starts(0) == 1
    played.ends(1, 0, "there are no more items")
    played.settle(3)
    assert played.fleet.over
    assert played.fleet.ending is Ending.DONE


def test_a_worker_that_somebody_else_told_to_end_is_started_again() -> None:
    played = running(shards=1, wanted=1)
    played.ends(0, 0, "SIGTERM")
    played.settle(5)
    assert played.starts(0) == 2
    assert played.fleet.shards[0].failures == ()


def test_a_failure_is_borne_with_a_pause_and_too_many_end_the_fleet_with_the_reason() -> None:
    played = running(shards=2, wanted=2)
    for _ in range(PATIENCE.most_failures + 1):
        held = played.fleet.shards[1]
        assert held.replica and held.launch_id
        played.worker(
            held.replica, 1, WorkerFacts(held.launch_id, running=False, exit_code=1, problem="no such dataset")
        )
        played.settle(40)
    assert played.fleet.ending is Ending.FAILED
    assert "no such dataset" in str(played.fleet.reason)
    assert played.fleet.over


def test_a_bad_configuration_is_tried_once_more_and_no_more() -> None:
    played = running(shards=1, wanted=1)
    for _ in range(2):
        played.ends(0, 2)
        played.settle(40)
    assert played.fleet.ending is Ending.FAILED
    assert played.starts(0) == 2


def test_failures_are_forgotten_after_a_steady_while() -> None:
    played = running(shards=1, wanted=1)
    played.ends(0, 1)
    played.settle(10)
    assert played.fleet.shards[0].failures
    played.settle(int(PATIENCE.steady_after) + 2)
    assert not played.fleet.shards[0].failures


def test_replicas_that_never_open_end_the_fleet() -> None:
    played = Played(shards=1, wanted=1)
    for _ in range(200):
        played.step()
        played.seen.clear()
    assert played.fleet.ending is Ending.FAILED
    opened = sum(isinstance(action, OpenReplica) for action in played.actions)
    assert opened <= PATIENCE.most_failures + 1


def test_a_stop_lets_what_is_in_flight_finish_before_anything_is_closed() -> None:
    played = running(shards=4, wanted=2)
    played.stop = True
    first = played.step()
    assert sum(isinstance(action, DrainWorker) for action in first) == 4
    assert not any(isinstance(action, CloseReplica) for action in first)
    played.settle(3)
    assert played.fleet.over
    assert played.fleet.ending is Ending.STOPPED


def test_a_hurry_kills_what_is_in_flight() -> None:
    played = running(shards=1, wanted=1)
    held = played.fleet.shards[0]
    assert held.launch_id is not None
    played.stop = True
    played._do = lambda action: None  # type: ignore[method-assign]
    played.step()
    played.abort = True
    assert KillWorker("replica-1", 0, held.launch_id) in played.step()


def test_a_driver_that_takes_over_leaves_workers_at_work() -> None:
    before = running(shards=4, wanted=2)
    played = Played(shards=4, wanted=2)
    played.seen = dict(before.seen)
    played.settle()
    assert played.actions == []
    assert played.held == before.held


def test_a_driver_that_takes_over_opens_no_replica_by_a_name_that_is_taken() -> None:
    before = running(shards=2, wanted=2)
    played = Played(shards=2, wanted=3)
    played.seen = dict(before.seen)
    played.step()
    assert [action for action in played.actions if isinstance(action, OpenReplica)] == [OpenReplica("replica-3")]
    assert all(one.state is not ReplicaState.CLOSING for one in played.fleet.replicas.values())

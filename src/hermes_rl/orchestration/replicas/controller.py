"""The driver of a fleet: observes, decides, acts and reports, twice a second, until the fleet has ended.

Always true: a fleet has one driver on this machine, enforced by a lock; it holds no state that it cannot rediscover, so
the same command continues the fleet after a kill.
"""

import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from hermes_rl.core.errors import HermesRLError
from hermes_rl.core.file_lock import exclusive_lock
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.replicas.hosts import Hosts
from hermes_rl.orchestration.replicas.scheduler import decide
from hermes_rl.orchestration.replicas.state_file import (
    FleetPaths,
    init_desired_fleet,
    read_desired_fleet,
    write_fleet_state,
)
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
    ReplicaState,
    StartWorker,
)

POLL_INTERVAL = 0.5
REPORT_EVERY = 10.0
WRITE_STATE_EVERY = 2.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class FleetError(HermesRLError):
    """The fleet failed in a way that retrying does not fix."""


@dataclass(frozen=True, slots=True)
class FleetTask:
    """The fleet to run. `on` names the platform for display."""

    name: str
    environment: str
    replicas: int
    shards: int
    on: str
    timeouts: FleetTimeouts


def run_fleet(task: FleetTask, connect: Callable[[], Hosts], report: Callable[[str], None]) -> Fleet:
    """Run until the fleet has ended; FleetError when it failed. `connect` is called with the lock held."""
    paths = FleetPaths(task.name)
    paths.folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(paths.driver, "--name"):
        hosts = connect()
        try:
            with _Signals().installed() as signals:
                init_desired_fleet(paths, task.replicas)
                fleet = _Driver(task, paths, hosts, report).run(signals)
        finally:
            hosts.close()
    if fleet.ending is Ending.FAILED:
        raise FleetError(f"the replicas of {task.environment} failed: {fleet.reason}")
    return fleet


class _Signals:
    """The first signal drains the fleet, the second aborts it."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def installed(self) -> Iterator["_Signals"]:
        def received(_number: int, _frame: FrameType | None) -> None:
            self.count += 1

        before = {number: signal.signal(number, received) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Driver:
    def __init__(self, task: FleetTask, paths: FleetPaths, hosts: Hosts, report: Callable[[str], None]) -> None:
        self._task, self._paths, self._hosts, self._report = task, paths, hosts, report
        self._fleet = Fleet.new(task.shards, uuid.uuid4().hex[:8], task.timeouts)
        self._began = time.time()
        self._last_actions: tuple[Action, ...] = ()
        self._written: Fleet | None = None
        self._written_at = self._reported_at = 0.0

    def run(self, signals: _Signals) -> Fleet:
        while not self._fleet.over:
            began = time.monotonic()
            self._tick(signals)
            time.sleep(max(0.05, POLL_INTERVAL - (time.monotonic() - began)))
        return self._fleet

    def _tick(self, signals: _Signals) -> None:
        facts = self._observe(signals)
        before = self._fleet
        self._fleet, actions = decide(before, facts, time.monotonic())
        if self._fleet.ending is not before.ending:
            self._report(f"ending: {self._fleet.reason}")
        for action in actions:
            if action not in self._last_actions:
                self._report(describe_action(action))
            self._hosts.execute(action)
        self._last_actions = actions
        for name, shard, line in self._hosts.take_lines():
            sys.stderr.write(f"[{name} shard {shard}] {line}\n")
        sys.stderr.flush()
        self._write_state(facts)

    def _observe(self, signals: _Signals) -> FleetFacts:
        desired = read_desired_fleet(self._paths)
        self._hosts.avoid(desired.avoided if desired else ())
        return FleetFacts(
            self._hosts.poll(),
            wanted=self._task.replicas if desired is None else desired.replicas,
            leaving=frozenset(desired.leaving if desired else ()),
            stop=signals.count > 0,
            abort=signals.count > 1,
            problem=self._hosts.problem,
        )

    def _write_state(self, facts: FleetFacts) -> None:
        now = time.monotonic()
        if self._fleet != self._written or now - self._written_at >= WRITE_STATE_EVERY:
            task = self._task
            try:
                write_fleet_state(
                    self._paths, self._fleet, facts, on=task.on, environment=task.environment, began=self._began
                )
            except OSError as error:
                self._report(f"cannot write the fleet's state: {error}")
            self._written, self._written_at = self._fleet, now
        if now - self._reported_at >= REPORT_EVERY:
            self._reported_at = now
            self._report(fleet_summary(self._fleet, facts))


def fleet_summary(fleet: Fleet, facts: FleetFacts) -> str:
    opened = [replica for replica in fleet.replicas.values() if replica.state is ReplicaState.OPEN]
    nodes = len({replica.node for replica in opened})
    served = sum(shard.state is UnitState.READY for shard in fleet.shards)
    done = sum(shard.done for shard in fleet.shards)
    restarts = sum(shard.restarts for shard in fleet.shards)
    return (
        f"{len(opened)} of {facts.wanted} replicas open on {nodes} nodes; {served} of {len(fleet.shards)} shards "
        f"served, {done} done; {restarts} restarts" + (f"; {facts.problem}" if facts.problem else "")
    )


def describe_action(action: Action) -> str:
    match action:
        case OpenReplica(replica):
            return f"opening {replica}"
        case CloseReplica(replica):
            return f"closing {replica}"
        case StartWorker(replica, shard):
            return f"starting shard {shard} on {replica}"
        case DrainWorker(replica, shard):
            return f"draining shard {shard} on {replica}"
        case KillWorker(replica, shard):
            return f"killing shard {shard} on {replica}"

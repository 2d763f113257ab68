"""The driver of a fleet: observes, decides, acts and reports, twice a second, until the fleet has ended.

Always true: a fleet has one driver on this machine, enforced by a lock; it holds no state that it cannot rediscover, so
the same command continues the fleet after a kill.
"""

import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hermes_rl.console.live_display import write_line
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.file_lock import exclusive_lock
from hermes_rl.core.private_files import private_folder
from hermes_rl.orchestration.atomic_json import write_atomic_json
from hermes_rl.orchestration.reconciler.driver import StateWriter, drive
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.replicas.hosts import Hosts
from hermes_rl.orchestration.replicas.scheduler import decide
from hermes_rl.orchestration.replicas.state_file import (
    FleetPaths,
    fleet_state,
    init_desired_fleet,
    read_desired_fleet,
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
# Of ticks that fail one after another.
GIVE_UP_AFTER = 60.0
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
    private_folder(paths.folder)
    with exclusive_lock(paths.driver, "--name"):
        hosts = connect()
        try:
            with _received_signals() as signals:
                init_desired_fleet(paths, task.replicas)
                fleet = _Driver(task, paths, hosts, signals, report).run()
        finally:
            hosts.close()
    if fleet.ending is Ending.FAILED:
        raise FleetError(f"the replicas of {task.environment} failed: {fleet.reason}")
    return fleet


@contextmanager
def _received_signals() -> Iterator[list[int]]:
    """The first signal drains the fleet, the second aborts it."""
    received: list[int] = []
    before = {number: signal.signal(number, lambda got, _frame: received.append(got)) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Driver:
    def __init__(
        self, task: FleetTask, paths: FleetPaths, hosts: Hosts, signals: list[int], report: Callable[[str], None]
    ) -> None:
        self._task, self._paths, self._hosts, self._signals, self._report = task, paths, hosts, signals, report
        self._fleet = Fleet.new(task.shards, uuid.uuid4().hex[:8], task.timeouts)
        self._began = time.time()
        self._last_actions: tuple[Action, ...] = ()
        self._state_file = StateWriter[dict[str, Any]](self._write_state, report)
        self._reported_at = 0.0
        self._worked_at = time.monotonic()
        """When the last tick succeeded."""

    def run(self) -> Fleet:
        drive(self._tick, self._paths.driver, POLL_INTERVAL, self._on_error)
        return self._fleet

    def _tick(self) -> bool:
        """Whether the fleet has ended."""
        facts = self._observe()
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
            write_line(f"[{name} shard {shard}] {line}")
        task = self._task
        self._state_file.put(
            fleet_state(self._paths, self._fleet, facts, on=task.on, environment=task.environment, began=self._began)
        )
        self._worked_at = time.monotonic()
        if self._worked_at - self._reported_at >= REPORT_EVERY:
            self._reported_at = self._worked_at
            self._report(fleet_summary(self._fleet, facts))
        return self._fleet.over

    def _on_error(self, error: Exception) -> None:
        hopeless = isinstance(error, ConfigError) or time.monotonic() - self._worked_at > GIVE_UP_AFTER
        if hopeless or len(self._signals) > 1:
            raise error
        self._report(f"a control step failed and is retried: {error!r}")

    def _observe(self) -> FleetFacts:
        desired = read_desired_fleet(self._paths)
        self._hosts.avoid(desired.avoided if desired else ())
        return FleetFacts(
            self._hosts.poll(),
            wanted=self._task.replicas if desired is None else desired.replicas,
            leaving=frozenset(desired.leaving if desired else ()),
            stop=len(self._signals) > 0,
            abort=len(self._signals) > 1,
            problem=self._hosts.problem,
        )

    def _write_state(self, state: dict[str, Any]) -> None:
        write_atomic_json(self._paths.state, {**state, "said_at": time.time()})


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

"""The driver of a fleet: looks, decides, acts and says so, twice a second, until the fleet has ended.

Always true: one driver a fleet on this machine, by its lock; it holds nothing that cannot be found out again, so the
same command goes on after it was killed.
"""

import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from hermes_rl.errors import HermesRLError
from hermes_rl.runs.replicas.deciding import decide
from hermes_rl.runs.replicas.hosts import Hosts
from hermes_rl.runs.replicas.standing import FleetPlaces, begin_wish, read_wish, write_standing
from hermes_rl.runs.replicas.states import (
    Action,
    Close,
    Drain,
    Ending,
    Facts,
    Fleet,
    Kill,
    Open,
    Patience,
    ReplicaState,
    ShardState,
    Start,
)
from hermes_rl.store.holding import only_writer

ROUND = 0.5
TELL_EVERY = 10.0
SAY_EVERY = 2.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class FleetError(HermesRLError):
    """The fleet ended because something is wrong that trying again does not mend."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is driven. `on` names the platform, for people."""

    name: str
    environment: str
    replicas: int
    shards: int
    on: str
    patience: Patience


def drive(task: Task, joined: Callable[[], Hosts], report: Callable[[str], None]) -> Fleet:
    """Until the fleet has ended; FleetError when it failed. The platform is `joined` by who holds the lock."""
    places = FleetPlaces(task.name)
    places.folder.mkdir(parents=True, exist_ok=True)
    with only_writer(places.driver, "--name"):
        hosts = joined()
        try:
            with _Signals().heard() as signals:
                begin_wish(places, task.replicas)
                fleet = _Driver(task, places, hosts, report).run(signals)
        finally:
            hosts.shut()
    if fleet.ending is Ending.FAILED:
        raise FleetError(f"the replicas of {task.environment} failed: {fleet.reason}")
    return fleet


class _Signals:
    """The first lets what is in flight finish, the second gives it up."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def heard(self) -> Iterator["_Signals"]:
        def received(_number: int, _frame: FrameType | None) -> None:
            self.count += 1

        before = {number: signal.signal(number, received) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Driver:
    def __init__(self, task: Task, places: FleetPlaces, hosts: Hosts, report: Callable[[str], None]) -> None:
        self._task, self._places, self._hosts, self._report = task, places, hosts, report
        self._fleet = Fleet.new(task.shards, uuid.uuid4().hex[:8], task.patience)
        self._began = time.time()
        self._done: tuple[Action, ...] = ()
        self._said: Fleet | None = None
        self._said_at = self._told_at = 0.0

    def run(self, signals: _Signals) -> Fleet:
        while not self._fleet.over:
            began = time.monotonic()
            self._round(signals)
            time.sleep(max(0.05, ROUND - (time.monotonic() - began)))
        return self._fleet

    def _round(self, signals: _Signals) -> None:
        facts = self._facts(signals)
        before = self._fleet
        self._fleet, actions = decide(before, facts, time.monotonic())
        if self._fleet.ending is not before.ending:
            self._report(f"ending: {self._fleet.reason}")
        for action in actions:
            if action not in self._done:
                self._report(told(action))
            self._hosts.do(action)
        self._done = actions
        for name, shard, line in self._hosts.lines():
            sys.stderr.write(f"[{name} shard {shard}] {line}\n")
        sys.stderr.flush()
        self._say(facts)

    def _facts(self, signals: _Signals) -> Facts:
        wish = read_wish(self._places)
        self._hosts.avoid(wish.avoided if wish else ())
        return Facts(
            self._hosts.look(),
            wanted=self._task.replicas if wish is None else wish.replicas,
            leaving=frozenset(wish.leaving if wish else ()),
            stop=signals.count > 0,
            hurry=signals.count > 1,
            problem=self._hosts.problem,
        )

    def _say(self, facts: Facts) -> None:
        now = time.monotonic()
        if self._fleet != self._said or now - self._said_at >= SAY_EVERY:
            task = self._task
            try:
                write_standing(
                    self._places, self._fleet, facts, on=task.on, environment=task.environment, began=self._began
                )
            except OSError as error:
                self._report(f"how it stands cannot be written: {error}")
            self._said, self._said_at = self._fleet, now
        if now - self._told_at >= TELL_EVERY:
            self._told_at = now
            self._report(summary(self._fleet, facts))


def summary(fleet: Fleet, facts: Facts) -> str:
    """One line for a person."""
    opened = [one for one in fleet.replicas.values() if one.state is ReplicaState.OPEN]
    nodes = len({one.node for one in opened})
    served = sum(shard.state is ShardState.SERVED for shard in fleet.shards)
    done = sum(shard.state is ShardState.DONE for shard in fleet.shards)
    restarts = sum(shard.restarts for shard in fleet.shards)
    return (
        f"{len(opened)} of {facts.wanted} replicas open on {nodes} nodes; {served} of {len(fleet.shards)} shards "
        f"served, {done} done; {restarts} restarts" + (f"; {facts.problem}" if facts.problem else "")
    )


def told(action: Action) -> str:
    match action:
        case Open(replica):
            return f"{replica} is asked for"
        case Close(replica):
            return f"{replica} is closed"
        case Start(replica, shard):
            return f"shard {shard} begins on {replica}"
        case Drain(replica, shard):
            return f"shard {shard} finishes on {replica}"
        case Kill(replica, shard):
            return f"shard {shard} is killed on {replica}"

"""What holds for every unit, be it a component of a run or a shard of a fleet, in a world of random faults.

The world knows what is alive; the decision function sees snapshots, and its stop requests may be ignored.
"""

from collections import Counter
from dataclasses import replace
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.replicas import scheduler
from hermes_rl.orchestration.replicas import types as fleet
from hermes_rl.orchestration.supervision import lifecycle as run
from hermes_rl.orchestration.supervision.component import ComponentObservation
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, ComponentTimeouts, Role

UNITS = 4
DEADLINE = 100
"""Seconds within which a stopped world is empty."""


class World(Protocol):
    obeys: bool
    alive: dict[int, str]
    """The living launch of each unit."""
    starts: Counter[int]

    def step(self, seconds: float) -> None:
        """Observe, decide, act. Raises when a unit is started while its last launch is alive."""
        ...

    def end(self, unit: int, code: int) -> None:
        """The unit's process exits by itself."""
        ...

    def stop(self) -> None: ...

    def failures(self, unit: int) -> tuple[float, ...]: ...

    @property
    def works(self) -> set[int]:
        """The units that run as they should."""
        ...

    @property
    def ending(self) -> str | None: ...

    @property
    def over(self) -> bool: ...


class RunWorld:
    PATIENCE = ComponentTimeouts(ready_within=60.0, stop_within=10.0, most_failures=10**6)
    PLAN = (
        ComponentPlan("engine", Role.ENGINE, (), (), patience=PATIENCE),
        ComponentPlan("api", Role.API, (), (), patience=PATIENCE),
        ComponentPlan("trainer", Role.TRAINER, (), ("engine", "api"), patience=PATIENCE),
        ComponentPlan("env", Role.ENVIRONMENT, (), ("api", "trainer"), patience=PATIENCE),
    )
    NAMES = tuple(plan.name for plan in PLAN)

    def __init__(self) -> None:
        self.obeys, self.now = True, 0.0
        self.alive: dict[int, str] = {}
        self.starts: Counter[int] = Counter()
        self._codes: dict[int, int] = {}
        self._wanted = run.DesiredRun.RUN
        self._progress = run.RunProgress.new(self.PLAN)

    def step(self, seconds: float) -> None:
        self.now += seconds
        seen = {
            name: ComponentObservation(
                shim=unit in self.alive,
                process=unit in self.alive,
                started=True,
                ready=unit in self.alive,
                url="http://127.0.0.1:1",
                exit_code=self._codes.get(unit),
            )
            for unit, name in enumerate(self.NAMES)
        }
        self._progress, actions = run.decide(self._progress, run.RunObservation(seen, self._wanted), self.now)
        for action in actions:
            unit = self.NAMES.index(action.component)
            match action:
                case run.StartComponent():
                    assert unit not in self.alive
                    self.starts[unit] += 1
                    self.alive[unit] = str(self.starts[unit])
                    self._codes.pop(unit, None)
                case run.StopComponent():
                    if self.obeys:
                        self.end(unit, 0)
                case run.KillComponent():
                    self.end(unit, -9)

    def end(self, unit: int, code: int) -> None:
        if self.alive.pop(unit, None):
            self._codes[unit] = code

    def stop(self) -> None:
        self._wanted = run.DesiredRun.STOP

    def failures(self, unit: int) -> tuple[float, ...]:
        return self._progress.components[self.NAMES[unit]].failures

    @property
    def works(self) -> set[int]:
        states = enumerate(self._progress.components[name].state for name in self.NAMES)
        return {unit for unit, state in states if state is UnitState.READY}

    @property
    def ending(self) -> str | None:
        return self._progress.ending

    @property
    def over(self) -> bool:
        return self._progress.phase.ended


class FleetWorld:
    PATIENCE = fleet.FleetTimeouts(drain_timeout=10.0, most_failures=10**6)

    def __init__(self) -> None:
        self.obeys, self.now = True, 0.0
        self.alive: dict[int, str] = {}
        self.starts: Counter[int] = Counter()
        self._replicas: dict[str, fleet.ReplicaFacts] = {}
        self._stop = False
        self._fleet = fleet.Fleet.new(UNITS, "driver", self.PATIENCE)

    def step(self, seconds: float) -> None:
        self.now += seconds
        facts = fleet.FleetFacts(dict(self._replicas), 0 if self._stop else 2, stop=self._stop)
        self._fleet, actions = scheduler.decide(self._fleet, facts, self.now)
        for action in actions:
            match action:
                case fleet.OpenReplica(name):
                    self._replicas[name] = fleet.ReplicaFacts(f"process of {name}", "node")
                case fleet.CloseReplica(name):
                    assert not any(worker.running for worker in self._replicas.pop(name).workers.values())
                case fleet.StartWorker(name, shard, launch_id):
                    assert shard not in self.alive
                    self.starts[shard] += 1
                    self.alive[shard] = launch_id
                    self._report(name, shard, fleet.WorkerFacts(launch_id, running=True))
                case fleet.DrainWorker(_, shard, launch_id) if self.alive.get(shard) == launch_id:
                    if self.obeys:
                        self.end(shard, 0)
                case fleet.KillWorker(_, shard, launch_id) if self.alive.get(shard) == launch_id:
                    self.end(shard, -9)

    def end(self, unit: int, code: int) -> None:
        launch_id = self.alive.pop(unit, None)
        for name, replica in self._replicas.items():
            if unit in replica.workers and replica.workers[unit].launch_id == launch_id:
                self._report(name, unit, fleet.WorkerFacts(launch_id, running=False, exit_code=code, ended="SIGTERM"))

    def stop(self) -> None:
        self._stop = True

    def failures(self, unit: int) -> tuple[float, ...]:
        return self._fleet.shards[unit].failures

    @property
    def works(self) -> set[int]:
        return {unit for unit, shard in enumerate(self._fleet.shards) if shard.state is UnitState.READY}

    @property
    def ending(self) -> str | None:
        return self._fleet.ending

    @property
    def over(self) -> bool:
        return self._fleet.over

    def _report(self, name: str, shard: int, worker: fleet.WorkerFacts) -> None:
        replica = self._replicas[name]
        self._replicas[name] = replace(replica, workers={**replica.workers, shard: worker})


WORLDS = pytest.mark.parametrize("world_class", [RunWorld, FleetWorld])
FAULTS = st.lists(
    st.tuples(st.integers(0, UNITS - 1), st.sampled_from([None, 1, -9]), st.sampled_from([0.5, 2.0, 40.0])),
    max_size=40,
)


@WORLDS
@settings(max_examples=40, deadline=None)
@given(faults=FAULTS, obeys=st.booleans())
def test_a_stopped_world_empties_and_its_ending_is_final(
    world_class: type[World], faults: list[tuple[int, int | None, float]], obeys: bool
) -> None:
    world = world_class()
    world.obeys = obeys
    for unit, code, seconds in faults:
        if code is not None:
            world.end(unit, code)
        world.step(seconds)
    world.stop()
    starts = world.starts.copy()
    for _ in range(DEADLINE):
        world.step(1.0)
    assert world.over
    assert not world.alive
    assert world.starts == starts
    ending = world.ending
    world.step(1000.0)
    assert world.over
    assert world.ending == ending


@WORLDS
@settings(max_examples=40, deadline=None)
@given(faults=FAULTS)
def test_a_failure_is_counted_once(world_class: type[World], faults: list[tuple[int, int | None, float]]) -> None:
    world = world_class()
    for unit, code, seconds in faults:
        crashed = code is not None and unit in world.alive
        if code is not None:
            world.end(unit, code)
        assert step_and_count(world, seconds) == [unit] * crashed
        assert step_and_count(world, seconds) == []


def step_and_count(world: World, seconds: float) -> list[int]:
    """The units whose failures grew in this step."""
    before = [world.failures(unit) for unit in range(UNITS)]
    world.step(seconds)
    return [unit for unit in range(UNITS) if set(world.failures(unit)) - set(before[unit])]


@WORLDS
@settings(max_examples=40, deadline=None)
@given(faults=FAULTS)
def test_every_unit_works_again_once_the_faults_end(
    world_class: type[World], faults: list[tuple[int, int | None, float]]
) -> None:
    world = world_class()
    for unit, code, seconds in faults:
        if code is not None:
            world.end(unit, code)
        world.step(seconds)
    for _ in range(200):
        world.step(1.0)
    assert world.works == set(range(UNITS))
    assert not world.over

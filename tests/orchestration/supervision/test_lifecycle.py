"""The course of a run, by properties over random facts and by the cases that people will meet."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.core.exit_codes import LIMIT_REACHED
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.orchestration.supervision.component import ComponentObservation
from hermes_rl.orchestration.supervision.lifecycle import (
    LIMIT_REASON,
    STOP_GRACE,
    DesiredRun,
    KillComponent,
    RunObservation,
    RunProgress,
    StartComponent,
    StopComponent,
    decide,
)
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, ComponentTimeouts, Role

PATIENCE = ComponentTimeouts(ready_within=60.0, stop_within=10.0, most_failures=3, first_pause=1.0, longest_pause=8.0)
PLAN = (
    ComponentPlan("engine", Role.ENGINE, (), (), patience=PATIENCE),
    ComponentPlan("api", Role.API, (), (), patience=PATIENCE),
    ComponentPlan("trainer", Role.TRAINER, (), ("engine", "api"), patience=PATIENCE),
    ComponentPlan("env-a", Role.ENVIRONMENT, (), ("api", "trainer"), patience=PATIENCE),
    ComponentPlan("env-b", Role.ENVIRONMENT, (), ("api", "trainer"), evaluation_only=True, patience=PATIENCE),
    ComponentPlan("export", Role.EXPORT, (), ("engine",), patience=replace(PATIENCE, most_failures=1)),
)
# The same with evaluations before the first step and after the last one.
EVALUATED = (
    *PLAN[:3],
    ComponentPlan("before", Role.BASELINE, (), ("trainer",), patience=replace(PATIENCE, most_failures=1)),
    *PLAN[3:],
    ComponentPlan("after", Role.EVALUATION, (), ("trainer",), patience=replace(PATIENCE, most_failures=1)),
)
NAMES = [plan.name for plan in PLAN]
SERVICES = NAMES[:-1]
RANK = {plan.name: plan.role.rank for plan in EVALUATED}
URL = "http://127.0.0.1:1"


@dataclass
class World:
    """Parts that do as they are told, unless a test says otherwise."""

    course: RunProgress = field(default_factory=lambda: RunProgress.new(PLAN))
    now: float = 0.0
    lives: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)
    exits: dict[str, int | None] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    obeys: bool = True
    wanted: DesiredRun = DesiredRun.RUN
    complete: bool = False
    limit: str | None = None
    log: list[StartComponent | StopComponent | KillComponent] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [plan.name for plan in self.course.plan]

    def facts(self) -> RunObservation:
        parts = {
            name: ComponentObservation(
                shim=name in self.lives,
                process=name in self.lives,
                started=True,
                ready=name in self.lives and name in self.ready,
                url=self.urls.get(name, URL),
                exit_code=self.exits.get(name),
            )
            for name in self.names
        }
        return RunObservation(parts, self.wanted, self.complete, self.limit)

    def step(self, seconds: float = 0.2) -> tuple[StartComponent | StopComponent | KillComponent, ...]:
        before = self.course
        self.course, actions = decide(self.course, self.facts(), self.now)
        for action in actions:
            self._check(before, action)
            name = action.component
            if isinstance(action, StartComponent):
                self.lives.add(name)
                self.exits[name] = None
            elif isinstance(action, KillComponent) or self.obeys:
                self.lives.discard(name)
                self.exits[name] = -9 if isinstance(action, KillComponent) else 0
        self.log += actions
        self.now += seconds
        return actions

    def _check(self, before: RunProgress, action: StartComponent | StopComponent | KillComponent) -> None:
        """What holds of every action, whatever was seen."""
        plan = next(plan for plan in before.plan if plan.name == action.component)
        if isinstance(action, StartComponent):
            assert action.component not in self.lives, "two lives at once"
            assert all(need in self.lives and need in self.ready for need in plan.needs), "before what it needs"
            assert before.phase is not Phase.STOPPING or plan.role in {Role.ENGINE, Role.EXPORT, Role.EVALUATION}
        if isinstance(action, StopComponent) and self.course.ending in {Phase.STOPPED, Phase.FAILED}:
            higher = [name for name in self.lives if RANK[name] > plan.role.rank]
            assert not higher, f"{action.component} is stopped before {higher}"

    def until(self, phase: Phase, most: float = 600.0) -> None:
        end = self.now + most
        while self.course.phase is not phase:
            assert self.now < end, f"{self.course.phase} and not {phase}: {self.course.reason}"
            assert not self.course.phase.ended, f"{self.course.phase}: {self.course.reason}"
            self.step()

    def end(self, name: str, code: int | None) -> None:
        self.lives.discard(name)
        self.exits[name] = code


def running() -> World:
    world = World(ready=set(SERVICES))
    world.until(Phase.RUNNING)
    return world


def starts(world: World) -> list[str]:
    return [action.component for action in world.log if isinstance(action, StartComponent)]


def stops(world: World) -> list[str]:
    return [action.component for action in world.log if isinstance(action, StopComponent)]


def test_parts_start_in_the_order_of_their_needs() -> None:
    assert starts(running()) == SERVICES


def test_a_stop_ends_parts_in_reverse() -> None:
    world = running()
    world.wanted = DesiredRun.STOP
    world.until(Phase.STOPPED)
    assert [RANK[name] for name in stops(world)] == sorted((RANK[name] for name in SERVICES), reverse=True)


def test_a_stop_while_starting_starts_nothing_more() -> None:
    world = World(ready={"engine", "api"})
    for _ in range(5):
        world.step()
    world.wanted = DesiredRun.STOP
    world.until(Phase.STOPPED)
    assert "env-a" not in starts(world)


def test_a_part_that_fails_is_started_again_after_pauses_that_double() -> None:
    world, moments = running(), []
    for _ in range(3):
        world.end("api", 1)
        began = world.now
        while "api" not in world.lives:
            world.step()
        moments.append(round(world.now - began))
    assert moments == [1, 2, 4]


def test_one_failure_too_many_ends_the_run_with_the_reason() -> None:
    world = running()
    while world.course.phase is not Phase.FAILED:
        world.end("trainer", 1)
        world.step()
    assert world.course.reason is not None
    assert world.course.reason.startswith("trainer: failed 4 times")


def test_failures_are_forgotten_when_it_was_ready_for_long() -> None:
    world = running()
    for _ in range(8):
        world.end("api", 1)
        world.step()
        while world.course.components["api"].state is not UnitState.READY:
            world.step()
        world.step(PATIENCE.steady_after + 1)
        world.step()
    assert world.course.phase is Phase.RUNNING


def test_a_bad_configuration_is_not_tried_again() -> None:
    world = World(ready={"engine", "api"})
    while "trainer" not in world.lives:
        world.step()
    world.end("trainer", 2)
    world.until(Phase.FAILED)
    assert starts(world).count("trainer") == 1


def test_exit_status_two_of_a_part_that_worked_before_is_tried_again() -> None:
    world = running()
    world.end("trainer", 2)
    for _ in range(20):
        world.step()
    assert starts(world).count("trainer") == 2


def test_a_port_that_others_took_is_no_bad_configuration() -> None:
    world = World(ready={"engine"})
    while "api" not in world.lives:
        world.step()
    world.end("api", 2)
    facts = world.facts()
    parts: Mapping[str, ComponentObservation] = {
        **facts.components,
        "api": replace(facts.components["api"], port_taken=True),
    }
    course, _ = decide(world.course, replace(facts, components=parts), world.now)
    assert course.components["api"].state is UnitState.WAITING


def test_a_part_that_never_gets_ready_is_stopped_and_counted() -> None:
    world = World(ready={"engine"})
    world.until(Phase.FAILED, 10 * PATIENCE.ready_within)
    assert "not ready within 60 s" in str(world.course.reason)


def test_a_part_is_not_blamed_while_what_it_needs_is_away() -> None:
    world = running()
    world.ready -= {"api", "env-a"}
    for _ in range(10):
        world.step(PATIENCE.ready_within / 10 - 1)
    assert world.course.components["env-a"].restarts == 0


def test_those_that_were_given_an_old_address_are_begun_anew() -> None:
    world = running()
    world.urls["api"] = "http://127.0.0.1:2"
    for _ in range(20):
        world.step()
    again = [action for action in world.log if isinstance(action, StartComponent)][len(SERVICES) :]
    assert {action.component for action in again} == {"trainer", "env-a", "env-b"}
    assert all(action.need_urls["api"] == "http://127.0.0.1:2" for action in again)


def test_a_complete_run_exports_before_its_engine_ends() -> None:
    world = running()
    world.complete = True
    while "export" not in world.lives:
        world.step()
    assert "engine" in world.lives
    assert not world.lives & {"env-a", "env-b"}
    world.end("export", 0)
    world.until(Phase.FINISHED)
    assert stops(world)[-3:] == ["trainer", "api", "engine"]


def test_an_export_that_fails_is_told_and_the_run_has_finished() -> None:
    world = running()
    world.complete = True
    while world.course.phase is not Phase.FINISHED:
        world.end("export", 1)
        world.step()
    assert "its weights were not exported" in str(world.course.reason)


def test_an_engine_that_dies_before_the_export_is_started_again() -> None:
    world = running()
    world.complete = True
    world.step()
    world.end("engine", -9)
    while "export" not in world.lives:
        world.step()
    assert starts(world).count("engine") == 2


def test_a_stop_during_the_export_leaves_a_run_to_resume() -> None:
    world = running()
    world.complete = True
    while "export" not in world.lives:
        world.step()
    world.wanted = DesiredRun.STOP
    world.until(Phase.STOPPED)
    assert "before its weights were exported" in str(world.course.reason)


def evaluated() -> World:
    """A run whose evaluation before the first step is running."""
    world = World(RunProgress.new(EVALUATED), ready={*SERVICES, "before", "after"})
    while "before" not in world.lives:
        world.step()
    return world


def test_environments_start_once_the_evaluation_before_the_first_step_has_ended() -> None:
    world = evaluated()
    for _ in range(10):
        world.step()
    assert world.course.phase is Phase.STARTING
    assert not world.lives & {"env-a", "env-b"}
    world.end("before", 0)
    world.until(Phase.RUNNING)
    assert starts(world)[-3:] == ["before", "env-a", "env-b"]


def test_a_run_goes_on_without_an_evaluation_that_fails() -> None:
    world = evaluated()
    while world.course.phase is not Phase.RUNNING:
        world.end("before", 1)
        world.step()
    assert starts(world).count("before") == 2
    for _ in range(10):
        world.step()
    assert world.course.phase is Phase.RUNNING


def complete() -> World:
    """A run that has taken its last step and exported its weights, and evaluates them."""
    world = evaluated()
    world.end("before", 0)
    world.until(Phase.RUNNING)
    world.complete = True
    while "after" not in world.lives or "export" not in world.lives:
        world.step()
    world.end("export", 0)
    return world


def test_the_trainer_serves_the_last_weights_until_they_are_evaluated() -> None:
    world = complete()
    for _ in range(10):
        world.step(PATIENCE.ready_within)
    assert {"engine", "trainer", "after"} <= world.lives
    world.end("after", 0)
    world.until(Phase.FINISHED)
    assert stops(world)[-3:] == ["trainer", "api", "engine"]


def test_an_evaluation_that_fails_after_the_last_step_does_not_undo_the_run() -> None:
    world = complete()
    while world.course.phase is not Phase.FINISHED:
        world.end("after", 1)
        world.step()
    assert starts(world).count("after") == 2


def test_without_its_trainer_a_complete_run_does_not_wait_for_an_evaluation() -> None:
    world = complete()
    world.end("trainer", -9)
    world.until(Phase.FINISHED, 30.0)


def test_a_stop_during_the_evaluation_leaves_a_run_to_resume() -> None:
    world = complete()
    world.step()
    world.wanted = DesiredRun.STOP
    world.until(Phase.STOPPED)
    assert "before its weights were evaluated" in str(world.course.reason)


def test_a_run_whose_environments_have_no_more_items_goes_on_for_a_while_then_fails() -> None:
    world = running()
    world.end("env-a", 0)
    world.step()
    world.step()
    assert "training continues with the queued groups" in str(world.course.reason)
    assert world.course.phase is Phase.RUNNING
    world.until(Phase.FAILED)


def test_an_environment_that_used_its_tokens_stops_the_run_to_be_resumed() -> None:
    world = running()
    world.end("env-a", LIMIT_REACHED)
    world.until(Phase.STOPPED)
    assert str(world.course.reason).startswith(f"{LIMIT_REASON}: env-a reached its limit")
    assert starts(world).count("env-a") == 1


def test_a_run_stops_when_its_time_is_over() -> None:
    world = running()
    world.limit = "2.0 of 2 minutes"
    world.until(Phase.STOPPED)
    assert world.course.reason == f"{LIMIT_REASON}: 2.0 of 2 minutes"


def test_a_part_that_lives_without_its_keeper_is_killed() -> None:
    world = running()
    facts = world.facts()
    parts = {**facts.components, "api": replace(facts.components["api"], shim=False)}
    _, actions = decide(world.course, replace(facts, components=parts), world.now)
    assert KillComponent("api") in actions


def test_a_keeper_that_outlives_its_part_for_long_is_killed() -> None:
    world = running()
    killed = False
    for _ in range(100):
        facts = world.facts()
        parts = {**facts.components, "api": replace(facts.components["api"], process=False, ready=False)}
        world.course, actions = decide(world.course, replace(facts, components=parts), world.now)
        killed = killed or KillComponent("api") in actions
        world.now += 0.2
    assert killed


PARTS = st.sampled_from([plan.name for plan in EVALUATED])
EVENTS = st.one_of(
    st.tuples(st.just("ready"), PARTS),
    st.tuples(st.just("unready"), PARTS),
    st.tuples(st.just("end"), PARTS, st.sampled_from([None, 0, 1, 2, -9])),
    st.tuples(st.just("move"), st.sampled_from(["engine", "api", "trainer"]), st.integers(1, 3)),
    st.tuples(st.just("complete")),
    st.tuples(st.just("stop")),
    st.tuples(st.just("disobey")),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 20.0, 61.0, 400.0])),
)


def befall(world: World, event: tuple[object, ...]) -> None:
    match event:
        case ("ready", str(part)):
            world.ready.add(part)
        case ("unready", str(part)):
            world.ready.discard(part)
        case ("end", str(part), int() | None as code) if part in world.lives:
            world.end(part, code)
        case ("move", str(part), int(port)) if part not in world.lives:
            world.urls[part] = f"http://127.0.0.1:{port}"
        case ("complete",):
            world.complete = True
        case ("stop",):
            world.wanted = DesiredRun.STOP
        case ("disobey",):
            world.obeys = False
        case ("wait", float(seconds)):
            world.now += seconds


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=40), st.booleans())
def test_whatever_is_seen_no_order_is_broken_and_a_stop_ends_within_its_deadlines(
    events: list[tuple[object, ...]], all_ready: bool
) -> None:
    world = World(RunProgress.new(EVALUATED), ready={*NAMES[:-1], "before", "after"} if all_ready else set())
    for event in events:
        befall(world, event)
        was = world.course.phase
        world.step()
        # An ended phase is never left.
        assert not was.ended or world.course.phase is was
    world.wanted = DesiredRun.STOP
    world.obeys = False
    ranks = len({plan.role for plan in EVALUATED})
    end = world.now + (ranks + 1) * (PATIENCE.stop_within + STOP_GRACE + 4.0)
    while not world.course.phase.ended:
        assert world.now < end, f"{world.course.phase}: {world.course.reason} {world.lives}"
        world.step(1.0)
    assert not world.lives


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), max_size=30))
def test_facts_that_contradict_each_other_never_start_a_second_life(rows: list[list[bool]]) -> None:
    course, now = RunProgress.new(PLAN), 0.0
    for row in rows:
        parts = {
            name: ComponentObservation(shim=alive, process=not alive and row[0])
            for name, alive in zip(NAMES, row, strict=True)
        }
        course, actions = decide(course, RunObservation(parts), now)
        for action in actions:
            assert not isinstance(action, StartComponent) or not parts[action.component].alive
        now += 0.2


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.FINISHED, Phase.FAILED])
def test_what_lives_after_the_end_is_killed(phase: Phase) -> None:
    course = replace(RunProgress.new(PLAN), phase=phase, ending=phase)
    parts = {name: ComponentObservation(shim=name == "api") for name in NAMES}
    after, actions = decide(course, RunObservation(parts), 1.0)
    assert (after, actions) == (course, (KillComponent("api"),))

"""What a run is, for every combination of what was said, what is wanted and what lives."""

import pytest

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.run_state import ComponentStatus, Phase, RunState
from hermes_rl.orchestration.status.derive import (
    SILENCE_LIMIT,
    START_GRACE,
    ComponentFacts,
    LivePhase,
    StatusFacts,
    derive_status,
    describe_exit,
    live_phase,
    part_status,
)

NOW = 10_000.0
SOMEBODY = ProcessIdentity(4, "then")
GOING = [Phase.STARTING, Phase.RUNNING, Phase.STOPPING]
ENDED = [Phase.STOPPED, Phase.FINISHED, Phase.FAILED]


def state(phase: Phase, *, said_at: float = NOW, started_at: float = NOW - 600, ran_before: float = 0.0) -> RunState:
    return RunState(
        "r1", phase, SOMEBODY, {"api": ComponentStatus()}, None, started_at, NOW - 300, said_at, ran_before=ran_before
    )


def facts(
    said: RunState | None,
    *,
    supervisor: bool = False,
    keeper: bool = False,
    stop: bool = False,
    wanted_at: float = 0.0,
    unreadable: str | None = None,
    asker: bool = False,
    coming: bool = False,
) -> StatusFacts:
    return StatusFacts(
        "r1",
        NOW,
        said,
        unreadable,
        supervisor,
        {"api": ComponentFacts(shim=keeper)},
        said.said_at if said else 0.0,
        stop,
        wanted_at,
        asker,
        coming,
    )


@pytest.mark.parametrize("phase", GOING)
def test_what_a_living_supervisor_says_is_so(phase: Phase) -> None:
    assert live_phase(facts(state(phase), supervisor=True, keeper=True)) == phase.value


@pytest.mark.parametrize("phase", GOING)
def test_a_run_that_was_told_to_stop_is_stopping(phase: Phase) -> None:
    assert live_phase(facts(state(phase), supervisor=True, stop=True)) is LivePhase.STOPPING


@pytest.mark.parametrize("phase", GOING)
def test_a_run_whose_supervisor_died_while_its_keepers_live_recovers(phase: Phase) -> None:
    standing = derive_status(facts(state(phase), keeper=True))
    assert standing.phase is LivePhase.RECOVERING
    assert "api kept running" in str(standing.reason)


@pytest.mark.parametrize("phase", GOING)
def test_a_run_with_no_process_left_was_interrupted_and_says_how_to_go_on(phase: Phase) -> None:
    standing = derive_status(facts(state(phase)))
    assert standing.phase is LivePhase.INTERRUPTED
    assert "hermes-rl run resume r1" in str(standing.reason)


@pytest.mark.parametrize("phase", GOING)
def test_a_run_with_no_process_left_that_was_told_to_stop_is_stopped(phase: Phase) -> None:
    assert live_phase(facts(state(phase), stop=True)) is LivePhase.STOPPED


@pytest.mark.parametrize("phase", ENDED)
@pytest.mark.parametrize("supervisor", [True, False])
@pytest.mark.parametrize("stop", [True, False])
def test_an_end_stays_an_end(phase: Phase, supervisor: bool, stop: bool) -> None:
    assert live_phase(facts(state(phase, said_at=NOW - 60), supervisor=supervisor, stop=stop)) == phase.value


@pytest.mark.parametrize("said", [None, state(Phase.STOPPED, said_at=NOW - 60), state(Phase.RUNNING, said_at=NOW - 60)])
def test_a_run_that_was_just_asked_for_is_starting(said: RunState | None) -> None:
    assert live_phase(facts(said, wanted_at=NOW - 1, asker=True)) is LivePhase.STARTING
    assert live_phase(facts(said, wanted_at=NOW - START_GRACE - 1, coming=True)) is LivePhase.STARTING


def test_one_whose_manager_died_before_it_had_a_supervisor_is_interrupted_at_once() -> None:
    assert live_phase(facts(None, wanted_at=NOW - 1)) is LivePhase.INTERRUPTED


@pytest.mark.parametrize(
    ("said", "phase"),
    [
        (None, LivePhase.INTERRUPTED),
        (state(Phase.STOPPED, said_at=NOW - 60), LivePhase.STOPPED),
        (state(Phase.RUNNING, said_at=NOW - 60), LivePhase.INTERRUPTED),
    ],
)
def test_a_supervisor_that_never_comes_is_not_waited_for_forever(said: RunState | None, phase: LivePhase) -> None:
    assert live_phase(facts(said, wanted_at=NOW - START_GRACE - 1, asker=True)) is phase


def test_a_run_that_was_stopped_before_its_supervisor_spoke_is_stopped() -> None:
    assert live_phase(facts(None, stop=True, wanted_at=NOW - 1)) is LivePhase.STOPPED


def test_a_state_that_cannot_be_read_is_told() -> None:
    standing = derive_status(facts(None, unreadable="state.json cannot be read: ValueError"))
    assert standing.phase is LivePhase.INTERRUPTED
    assert "cannot be read" in str(standing.reason)


def test_a_frozen_supervisor_is_told() -> None:
    standing = derive_status(facts(state(Phase.RUNNING, said_at=NOW - 9), supervisor=True, keeper=True))
    assert (standing.phase, standing.silent) == (LivePhase.RUNNING, 9.0)
    assert "silent for 9 s" in str(standing.reason)


def test_a_supervisor_that_spoke_just_now_is_not_silent() -> None:
    assert derive_status(facts(state(Phase.RUNNING, said_at=NOW - SILENCE_LIMIT), supervisor=True)).silent is None


@pytest.mark.parametrize(
    ("said", "supervisor", "seconds"),
    [
        (state(Phase.RUNNING), True, 600),
        (state(Phase.RUNNING, ran_before=1000), True, 1600),
        (state(Phase.STOPPED), False, 300),
        (state(Phase.RUNNING, said_at=NOW - 200), False, 400),
        (None, False, 0),
    ],
)
def test_running_time_counts_only_while_it_ran(said: RunState | None, supervisor: bool, seconds: float) -> None:
    assert derive_status(facts(said, supervisor=supervisor)).running_seconds == seconds


@pytest.mark.parametrize(
    ("part", "seen", "status"),
    [
        (ComponentStatus(), ComponentFacts(), "waiting"),
        (ComponentStatus(restarts=2, exit_code=1), ComponentFacts(), "waiting"),
        (ComponentStatus(UnitState.STARTING), ComponentFacts(), "waiting"),
        (ComponentStatus(UnitState.STARTING, SOMEBODY), ComponentFacts(shim=True), "starting"),
        (
            ComponentStatus(UnitState.STARTING, SOMEBODY, SOMEBODY),
            ComponentFacts(shim=True, process=True),
            "starting",
        ),
        (ComponentStatus(UnitState.READY, SOMEBODY, SOMEBODY), ComponentFacts(shim=True, process=True), "running"),
        (ComponentStatus(UnitState.READY, SOMEBODY, SOMEBODY), ComponentFacts(), "exited (code unknown)"),
        (
            ComponentStatus(UnitState.READY, SOMEBODY, SOMEBODY, exit_code=3),
            ComponentFacts(),
            "exited (code unknown)",
        ),
        (ComponentStatus(UnitState.READY, SOMEBODY, SOMEBODY), ComponentFacts(exit_code=-9), "killed by SIGKILL"),
        (
            ComponentStatus(UnitState.STOPPING, SOMEBODY, SOMEBODY),
            ComponentFacts(shim=True, process=True),
            "stopping",
        ),
        (ComponentStatus(UnitState.EXITED, SOMEBODY, SOMEBODY, exit_code=0), ComponentFacts(), "exited (0)"),
        (ComponentStatus(UnitState.EXITED, exit_code=-9), ComponentFacts(), "killed by SIGKILL"),
        (ComponentStatus(UnitState.READY), ComponentFacts(exit_code=1), "exited (1)"),
        (ComponentStatus(UnitState.EXITED), ComponentFacts(), "not started"),
        (ComponentStatus(UnitState.EXITED), ComponentFacts(started=True), "exited (code unknown)"),
        (ComponentStatus(UnitState.EXITED), ComponentFacts(exit_code=2, started=True), "exited (2)"),
    ],
)
def test_a_part_is_what_lives_of_it(part: ComponentStatus, seen: ComponentFacts, status: str) -> None:
    assert part_status(part, seen) == status


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert describe_exit(-99) == "killed by signal 99"

import pytest

from hermes_rl.orchestration.status.derive import LivePhase
from hermes_rl.orchestration.status.status import Pace, detect_stall

NOW = 100_000.0


def pace(
    phase: LivePhase = LivePhase.RUNNING,
    *,
    last_step: float | None = None,
    since: float = 90_000.0,
    step_seconds: float | None = None,
    heard: float = 0.0,
    **environments: str,
) -> Pace:
    last = None if last_step is None else NOW - last_step
    return Pace(phase, NOW, NOW - since, last, step_seconds, NOW - heard, environments or {"env": "running"})


@pytest.mark.parametrize(
    ("given", "stalled"),
    [
        (pace(last_step=599), False),
        (pace(last_step=601), True),
        (pace(last_step=601, step_seconds=200), False),
        (pace(last_step=1001, step_seconds=200), True),
        (pace(since=599), False),
        (pace(since=601), True),
        # Resumed a moment ago: the last step was before it was stopped.
        (pace(last_step=5000, since=60), False),
        (pace(LivePhase.STARTING, last_step=5000), False),
        (pace(LivePhase.STOPPING, last_step=5000), False),
        (pace(LivePhase.FINISHED, last_step=5000), False),
        (pace(LivePhase.INTERRUPTED, last_step=5000), False),
        (pace(last_step=-30), False),
        (pace(last_step=10, env="waiting"), True),
        (pace(last_step=10, a="exited (1)", b="waiting"), True),
        (pace(last_step=10, a="exited (1)", b="running"), False),
        (pace(last_step=10, env="starting"), False),
    ],
)
def test_a_run_stalls_when_no_step_comes_in_its_own_time(given: Pace, stalled: bool) -> None:
    assert (detect_stall(given) is not None) == stalled


def test_a_stall_says_since_when_and_why() -> None:
    stall = detect_stall(pace(last_step=1200, step_seconds=30))
    assert stall is not None
    assert (stall.kind, stall.since) == ("no_step", NOW - 1200)
    assert stall.why == "no new step for 20 minutes; a step takes 30 s"


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (pace(last_step=1200, heard=1200), "env"),
        (pace(last_step=1200, heard=5), "trainer"),
        (pace(last_step=5, a="exited (1)", b="waiting"), "a"),
    ],
)
def test_a_stall_points_to_the_log_that_says_more(given: Pace, part: str) -> None:
    stall = detect_stall(given)
    assert stall is not None
    assert stall.look_at == part

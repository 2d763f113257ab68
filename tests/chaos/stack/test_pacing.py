"""How fast a run goes under a chaos."""

from tests.chaos.stack.pacing import MEASURED, QUICK, SLOWEST, SPARE, paced, steps_for


def test_the_last_steps_are_not_taken_while_faults_are_still_to_come() -> None:
    assert paced(60, SPARE) == SLOWEST
    assert paced(0, SPARE) == SLOWEST


def test_a_run_that_is_ahead_goes_slower_than_one_that_is_behind() -> None:
    assert paced(100, 20 + SPARE) > paced(100, 80 + SPARE) > QUICK


def test_no_sandbox_takes_long_while_a_recovery_is_measured() -> None:
    assert paced(600, 2 * SPARE) > MEASURED
    assert paced(600, 2 * SPARE, recovering=True) <= MEASURED


def test_a_longer_chaos_has_more_steps() -> None:
    assert steps_for(20) > steps_for(4) > SPARE

"""The figures of a fleet under faults, from courses that are made up."""

from tests.chaos.replicas.figures import WINDOW, Course, Fault, summary


def course(*stretches: tuple[float, float]) -> Course:
    """So many seconds at so many groups a second, one after the other, looked at every half second."""
    moments, now, made = [(0.0, 0)], 0.0, 0.0
    for seconds, rate in stretches:
        for _ in range(int(seconds * 2)):
            now, made = now + 0.5, made + rate / 2
            moments.append((now, int(made)))
    return Course(moments)


def fault(recovered: float | None, after: float) -> Fault:
    return Fault("kill", "node", 1, 4, 10.0, 12.0, recovered, rate_before=4.0, rate_during=2.0, rate_after=after)


def test_a_rate_is_of_the_groups_between_two_moments() -> None:
    assert course((10, 4), (10, 2)).rate(0, 10) == 4
    assert course((10, 4), (10, 2)).rate(10, 20) == 2


def test_a_fleet_has_recovered_when_a_whole_window_has_the_rate_of_before() -> None:
    seen = course((20, 4), (12, 2), (20, 4))
    recovered = seen.recovered(20, 4.0, 52)
    # A few slow moments may be in a window that has nine tenths of it.
    assert recovered is not None
    assert 32 - WINDOW / 4 <= recovered <= 32


def test_a_fleet_that_stays_slow_has_not_recovered() -> None:
    assert course((20, 4), (40, 3)).recovered(20, 4.0, 60) is None


def test_what_was_not_seen_for_a_whole_window_is_no_recovery() -> None:
    assert course((20, 4), (12, 2), (4, 4)).recovered(20, 4.0, 36) is None


def test_a_fault_that_slowed_nothing_is_overcome_at_once() -> None:
    assert course((60, 4)).recovered(20, 4.0, 60) == 20


def test_the_summary_counts_what_did_not_recover() -> None:
    told = summary([fault(15.0, 4.0), fault(None, 2.0), fault(20.0, 4.0)])
    assert (told["recovered_median"], told["recovered_worst"], told["not_seen_to_recover"]) == (17.5, 20.0, 1)
    assert told["rate_after_to_before_median"] == 1.0

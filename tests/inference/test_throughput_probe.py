from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.inference.concurrency_limiter import Point, ThroughputProbe

MIN_GAIN, MAX_SLOWDOWN = 0.3, 4.0
points = st.lists(st.builds(Point, st.floats(0, 1000), st.floats(0, 1000)), max_size=30)


def judged(*told: Point) -> list[bool]:
    probe = ThroughputProbe(MIN_GAIN, MAX_SLOWDOWN)
    return [probe.shows_queue(point) for point in told]


def test_throughput_that_stays_as_it_was_is_a_queue() -> None:
    assert judged(Point(8, 8), Point(16, 16), Point(32, 17)) == [False, False, True]


def test_points_that_are_near_each_other_are_not_compared() -> None:
    assert judged(Point(8, 8), Point(12, 8)) == [False, False]


def test_the_same_work_that_takes_much_longer_is_strain() -> None:
    assert judged(Point(8, 8), Point(8, 1)) == [False, True]


def test_work_that_is_no_quicker_with_less_has_become_slower_in_itself() -> None:
    assert judged(Point(8, 8), Point(8, 1), Point(5, 0.63), Point(8, 1)) == [False, True, False, False]


@settings(deadline=None)
@given(points)
def test_a_round_in_which_nothing_was_done_or_in_flight_is_no_queue(told: list[Point]) -> None:
    probe = ThroughputProbe(MIN_GAIN, MAX_SLOWDOWN)
    for point in told:
        queue = probe.shows_queue(point)
        assert not queue or (point.in_flight > 0 and point.throughput > 0)


@settings(deadline=None)
@given(points, st.floats(0.1, 1000), st.floats(0.1, 1000))
def test_what_is_forgotten_is_not_held_against_the_next_round(
    told: list[Point], in_flight: float, throughput: float
) -> None:
    probe = ThroughputProbe(MIN_GAIN, MAX_SLOWDOWN)
    for point in told:
        probe.shows_queue(point)
    probe.reset()
    assert not probe.shows_queue(Point(in_flight, throughput))

"""The limit of what is in flight: what holds for any history. Where it settles is in test_settling.py."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.inference.concurrency_limiter import MIN_REMAINING, AIMDLimiter, LimiterConfig

EVENTS = ("began", "answered", "refused", "lost", "ended")
histories = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.floats(0, 10), st.integers(1, 40)),
    max_size=60,
)
laws = st.builds(
    LimiterConfig,
    initial=st.integers(1, 64),
    minimum=st.integers(1, 8),
    maximum=st.integers(8, 600),
    unit=st.integers(1, 8),
    weight=st.floats(0.1, 10),
)


def happen(pressure: AIMDLimiter, name: str, now: float) -> None:
    """An event; only what is in flight can end, as the gate sees to."""
    if name == "began" or pressure.in_flight:
        getattr(pressure, name)(now)


def play(pressure: AIMDLimiter, history: Sequence[tuple[str, float, int]]) -> list[int]:
    """Its limits after each event."""
    limits, now = [], 0.0
    for name, seconds, times in history:
        now += seconds
        for _ in range(times):
            happen(pressure, name, now)
            limits.append(pressure.limit)
    return limits


def well(pressure: AIMDLimiter, rounds: int, now: float = 0.0) -> float:
    """Rounds at the limit in which each request takes a second, however many there are; when they ended."""
    before = pressure.limit
    while rounds:
        while pressure.has_room:
            pressure.began(now)
        now += 1.0
        for _ in range(pressure.in_flight):
            pressure.answered(now)
            if pressure.in_flight < pressure.limit:
                pressure.began(now)
            if pressure.limit != before:
                before, rounds = pressure.limit, rounds - 1
                break
    return now


@settings(deadline=None)
@given(laws, histories)
def test_the_limit_stays_between_its_bounds(law: LimiterConfig, history: list[tuple[str, float, int]]) -> None:
    assert all(min(law.minimum, law.maximum) <= limit <= law.maximum for limit in play(AIMDLimiter(law), history))


@settings(deadline=None)
@given(laws, histories)
def test_the_same_history_gives_the_same_limits(law: LimiterConfig, history: list[tuple[str, float, int]]) -> None:
    assert play(AIMDLimiter(law), history) == play(AIMDLimiter(law), history)


@settings(deadline=None)
@given(laws, histories)
def test_nothing_that_fails_or_ends_raises_the_limit(law: LimiterConfig, history: list[tuple[str, float, int]]) -> None:
    pressure, now = AIMDLimiter(law), 0.0
    for name, seconds, times in history:
        now += seconds
        for _ in range(times):
            before = pressure.limit
            happen(pressure, name, now)
            assert name == "answered" or pressure.limit <= before


@settings(deadline=None)
@given(laws, histories, st.integers(1, 600))
def test_refusals_that_come_together_are_one_cut_to_a_third_at_most(
    law: LimiterConfig, history: list[tuple[str, float, int]], refusals: int
) -> None:
    pressure = AIMDLimiter(law)
    play(pressure, history)
    now = sum(seconds for _, seconds, _ in history)
    while pressure.has_room:
        pressure.began(now)
    before, cuts = pressure.limit, pressure.cuts
    for _ in range(min(refusals, before)):
        pressure.refused(now)
    assert pressure.cuts - cuts <= 1
    assert pressure.limit >= max(law.minimum, int(MIN_REMAINING * before) - 1)


@settings(deadline=None)
@given(st.integers(16, 500), st.data())
def test_of_a_burst_what_was_not_refused_keeps_its_room(limit: int, data: st.DataObject) -> None:
    """One factor for all of them: what is left is by how many were refused, not by how often."""
    refusals = data.draw(st.integers(1, limit // 2))
    pressure = AIMDLimiter(LimiterConfig(initial=limit))
    pressure.began(0.0, limit)
    for _ in range(refusals):
        pressure.refused(1.0)
    assert pressure.limit == round(pressure.config.refusal_backoff * (limit - refusals))


@settings(deadline=None)
@given(laws, st.lists(st.tuples(st.sampled_from(["began", "answered", "refused"]), st.integers(1, 40)), max_size=80))
def test_between_two_cuts_lies_as_much_as_was_allowed_in_flight(
    law: LimiterConfig, history: list[tuple[str, int]]
) -> None:
    """A round trip: what was sent before the first cut cannot cause the second."""
    pressure, now = AIMDLimiter(law), 0.0
    cuts, outcomes, allowed = 0, 0, 0
    for name, times in history:
        for _ in range(times):
            now += 0.01
            limit = pressure.limit
            outcomes += name != "began" and pressure.in_flight > 0
            happen(pressure, name, now)
            if pressure.cuts > cuts:
                assert not cuts or outcomes >= allowed
                cuts, outcomes, allowed = pressure.cuts, 0, limit


@settings(deadline=None)
@given(laws, histories)
def test_whatever_happened_something_may_begin_when_nothing_is_in_flight(
    law: LimiterConfig, history: list[tuple[str, float, int]]
) -> None:
    pressure = AIMDLimiter(law)
    play(pressure, history)
    pressure.ended(1e6, pressure.in_flight)
    assert pressure.has_room


@settings(deadline=None)
@given(laws, histories)
def test_whatever_happened_the_limit_grows_again_at_an_engine_that_is_well(
    law: LimiterConfig, history: list[tuple[str, float, int]]
) -> None:
    law = replace(law, weight=max(law.weight, 0.5))
    pressure = AIMDLimiter(law)
    play(pressure, history)
    lowest, now = pressure.limit, sum(seconds for _, seconds, _ in history)
    for _ in range(200):
        if pressure.limit >= min(law.maximum, 2 * lowest):
            return
        while pressure.has_room:
            pressure.began(now)
        now += 1.0
        for _ in range(pressure.in_flight):
            pressure.answered(now)
        lowest = min(lowest, pressure.limit)
    pytest.fail(f"still {pressure.limit} after 200 round trips")


@settings(deadline=None)
@given(laws, histories)
def test_what_is_in_flight_is_never_less_than_nothing(
    law: LimiterConfig, history: list[tuple[str, float, int]]
) -> None:
    pressure = AIMDLimiter(law)
    play(pressure, history)
    assert pressure.in_flight >= 0


@settings(deadline=None)
@given(st.integers(1, 200))
def test_an_engine_that_is_lost_begins_with_the_least(first: int) -> None:
    pressure = AIMDLimiter(LimiterConfig(initial=first))
    for _ in range(3):
        pressure.began(0.0)
    for _ in range(3):
        pressure.lost(1.0)
    assert (pressure.limit, pressure.losses) == (1, 3)


def test_one_loss_alone_says_nothing_of_the_engine() -> None:
    pressure = AIMDLimiter(LimiterConfig(initial=8))
    for _ in range(20):
        pressure.began(0.0)
        pressure.lost(1.0)
        pressure.began(1.0)
        pressure.answered(2.0)
    assert pressure.limit >= 8


def lose(pressure: AIMDLimiter, now: float) -> None:
    """Fill it, and lose all of it."""
    while pressure.has_room:
        pressure.began(now)
    for _ in range(pressure.in_flight):
        pressure.lost(now)


def test_an_engine_that_comes_back_has_half_of_what_it_had_after_as_many_answers() -> None:
    pressure = AIMDLimiter(LimiterConfig(initial=64))
    lose(pressure, 0.0)
    answers = 0
    while pressure.limit < 32:
        pressure.began(1.0)
        pressure.answered(1.0)
        answers += 1
    assert answers == 31


def test_an_engine_that_was_away_for_long_has_half_of_what_it_had_too() -> None:
    pressure = AIMDLimiter(LimiterConfig(initial=64))
    lose(pressure, 0.0)
    for _ in range(100):
        pressure.began(1.0)
        pressure.lost(1.0)
    well(pressure, 31)
    assert pressure.limit == 32


def test_answers_between_the_losses_of_one_fall_do_not_cut_it_again() -> None:
    pressure = AIMDLimiter(LimiterConfig(initial=64))
    pressure.began(0.0, 64)
    for _ in range(10):
        pressure.lost(0.0)
        pressure.lost(0.0)
        pressure.answered(0.0)
        pressure.refused(0.0)
    assert (pressure.cuts, pressure.limit) == (1, 2)
    well(pressure, 30)
    assert pressure.limit == 32


def test_an_engine_that_falls_again_and_again_is_given_less_each_time() -> None:
    pressure = AIMDLimiter(LimiterConfig(initial=64))
    for _ in range(3):
        lose(pressure, 0.0)
        pressure.began(1.0)
        pressure.answered(1.0)
    well(pressure, 6)
    assert pressure.limit == 8


def test_a_limit_that_is_not_reached_does_not_grow() -> None:
    pressure, now = AIMDLimiter(LimiterConfig(initial=8)), 0.0
    for _ in range(500):
        pressure.began(now)
        now += 1.0
        pressure.answered(now)
    assert pressure.limit == 8


def test_it_doubles_until_the_first_sign_of_strain_and_then_adds() -> None:
    pressure = AIMDLimiter(LimiterConfig(initial=8))
    now = well(pressure, 3)
    assert pressure.limit == 64
    while pressure.has_room:
        pressure.began(now)
    pressure.began(now)
    pressure.refused(now)
    after = pressure.limit
    assert after == 58
    well(pressure, 1, now)
    assert pressure.limit == after + 1


def test_many_that_wait_for_the_engines_cut_the_limit_of_rollouts() -> None:
    pressure, now = AIMDLimiter(LimiterConfig(initial=32, unit=4, minimum=4)), 0.0
    pressure.began(now, 32)
    for _ in range(4):
        pressure.observe_queue(now, queued=24, capacity=8)
        now += 1.0
        pressure.served(now, 16, 16)
    assert (pressure.cuts, pressure.limit) == (1, 26)


def test_a_cut_waits_until_the_last_one_has_taken_effect() -> None:
    pressure, now = AIMDLimiter(LimiterConfig(initial=32, unit=4, minimum=4)), 0.0
    pressure.began(now, 32)
    for _ in range(40):
        pressure.observe_queue(now, queued=24, capacity=8)
        now += 1.0
        pressure.served(now, 16, 16)
    assert pressure.cuts == 1


def test_rollouts_grow_by_whole_groups() -> None:
    pressure, now = AIMDLimiter(LimiterConfig(initial=32, unit=8, minimum=8, maximum=64)), 0.0
    while pressure.limit < 64:
        while pressure.in_flight + 8 <= pressure.limit:
            pressure.began(now, 8)
        pressure.observe_queue(now, queued=0, capacity=100)
        now += 1.0
        pressure.served(now, pressure.in_flight, pressure.in_flight)
    assert pressure.limit % 8 == 0


def slowly(pressure: AIMDLimiter, now: float) -> None:
    """Four hundred rounds in which all that may be asked takes ten seconds."""
    for _ in range(400):
        while pressure.has_room:
            pressure.began(now)
        now += 10.0
        for _ in range(pressure.in_flight):
            pressure.answered(now)


def test_work_that_has_become_slower_in_itself_is_no_queue_for_ever() -> None:
    """Longer conversations: the same work takes ten times as long, however little is in flight."""
    pressure = AIMDLimiter(LimiterConfig(initial=64))
    slowly(pressure, well(pressure, 1))
    assert pressure.limit >= 32


def test_work_that_is_slower_than_when_it_was_nearly_idle_is_no_queue_for_ever() -> None:
    """What was measured with less than one in flight cannot be gone back to."""
    pressure, now = AIMDLimiter(LimiterConfig(initial=8)), 0.0
    for _ in range(200):
        pressure.began(now)
        pressure.answered(now + 0.01)
        now += 1.0
    slowly(pressure, now)
    assert pressure.limit >= 16


def test_answers_while_nothing_is_in_flight_say_nothing() -> None:
    """Another's answers, as those of an evaluation."""
    pressure, now = AIMDLimiter(LimiterConfig(initial=8)), 0.0
    for _ in range(10):
        now += 1.0
        pressure.served(now, 16, 16)
    well(pressure, 1, now)
    assert pressure.limit == 16


@pytest.mark.parametrize(("minimum", "maximum"), [(0, 8), (9, 8)])
def test_a_law_with_bounds_that_nothing_fits_is_refused(minimum: int, maximum: int) -> None:
    with pytest.raises(ValueError, match="minimum"):
        LimiterConfig(minimum=minimum, maximum=maximum)

"""The plan of a chaos, for many seeds and lengths."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.stack.schedule import KINDS, MOST_ENDS, MOST_FILLS, WINDOW, Fault, Form, Kind, planned

SEEDS, MINUTES = st.integers(0, 10_000), st.sampled_from([1.0, 4.0, 20.0, 45.0])


@settings(max_examples=25, deadline=None)
@given(SEEDS, MINUTES)
def test_a_seed_says_all_of_it(seed: int, minutes: float) -> None:
    assert planned(seed, minutes) == planned(seed, minutes)


def test_another_seed_or_part_is_another_plan() -> None:
    plans = [planned(1, 20), planned(2, 20), planned(1, 20, part=1)]
    assert len({tuple(fault.kind for fault in plan) for plan in plans}) == len(plans)


@settings(max_examples=25, deadline=None)
@given(SEEDS, MINUTES)
def test_times_only_rise_and_stay_within_the_minutes(seed: int, minutes: float) -> None:
    times = [fault.at for fault in planned(seed, minutes)]
    assert times == sorted(times)
    assert times[0] >= 0 and times[-1] <= minutes * 60


@settings(max_examples=25, deadline=None)
@given(SEEDS, MINUTES)
def test_no_part_is_ended_more_often_than_its_supervisor_bears(seed: int, minutes: float) -> None:
    faults = planned(seed, minutes)
    for last in faults:
        recent = [fault for fault in faults if 0 <= last.at - fault.at < WINDOW]
        ends = Counter(fault.kind.ends for fault in recent if fault.kind.ends)
        assert max(ends.values(), default=0) <= MOST_ENDS
        assert sum(fault.kind.form is Form.FULL_DISK for fault in recent) <= MOST_FILLS


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_the_shortest_plan_has_every_form_and_a_dozen_kinds(seed: int) -> None:
    faults = planned(seed, 4)
    assert {fault.kind.form for fault in faults} == set(Form)
    assert len({fault.kind for fault in faults}) >= 12


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_two_hours_have_two_hundred_faults_and_nearly_every_kind(seed: int) -> None:
    faults = [fault for part in range(6) for fault in planned(seed, 20, part)]
    assert len(faults) >= 200
    # A part of twenty minutes begins with one of each form; which kinds come last of all is left to the seed.
    assert len({fault.kind for fault in faults}) > 0.9 * len(KINDS)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_one_long_run_has_every_kind_before_any_comes_three_times(seed: int) -> None:
    counts = Counter(fault.kind for fault in planned(seed, 120) if fault.kind.ends is None)
    others = [kind for kind in KINDS if kind.ends is None]
    assert all(counts[kind] for kind in others)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_only_a_kill_is_over_at_once(seed: int) -> None:
    assert all((fault.seconds == 0) is (fault.kind.form is Form.KILL) for fault in planned(seed, 45))


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_clocks_are_set_the_way_that_they_are_said_to(seed: int) -> None:
    faults: tuple[Fault, ...] = planned(seed, 45)
    assert all(fault.amount >= 60 for fault in faults if fault.kind.form is Form.FORWARD)
    assert all(fault.amount <= -60 for fault in faults if fault.kind.form is Form.BACK)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (Kind(Form.KILL, "keeper trainer"), "trainer"),
        (Kind(Form.KILL, "engine worker"), "engine"),
        (Kind(Form.KILL, "sandbox"), None),
        (Kind(Form.KILL, "supervisor"), None),
        (Kind(Form.PAUSE, "trainer"), None),
    ],
)
def test_whose_life_a_fault_ends(kind: Kind, part: str | None) -> None:
    assert kind.ends == part

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.inference.endpoint_pool import PREFIX_BONUS, load, pick_endpoint


@dataclass(eq=False)
class One:
    in_flight: int
    limit: int | None = None


measured = st.lists(st.builds(One, st.integers(0, 100), st.integers(1, 64)), min_size=1, max_size=6)
unmeasured = st.lists(st.builds(One, st.integers(0, 100)), min_size=1, max_size=6)


@settings(deadline=None)
@given(st.one_of(measured, unmeasured))
def test_without_a_prefix_the_least_loaded_is_chosen(ready: list[One]) -> None:
    assert load(pick_endpoint(ready, None)) == min(map(load, ready))


@settings(deadline=None)
@given(measured, st.integers(0, 5))
def test_the_holder_of_a_prefix_that_has_room_is_chosen(ready: list[One], place: int) -> None:
    holder = ready[place % len(ready)]
    if holder.limit is not None and holder.in_flight < holder.limit:
        assert pick_endpoint(ready, holder) is holder


@settings(deadline=None)
@given(st.one_of(measured, unmeasured), st.integers(0, 5))
def test_whoever_is_chosen_is_the_holder_or_the_least_loaded(ready: list[One], place: int) -> None:
    holder = ready[place % len(ready)]
    one = pick_endpoint(ready, holder)
    assert one is holder or load(one) == min(map(load, ready))


def test_a_holder_that_is_full_is_left_for_one_that_is_idle() -> None:
    full, idle = One(20, 10), One(0, 10)
    assert pick_endpoint([full, idle], full) is idle


def test_a_holder_that_is_full_is_kept_where_all_are() -> None:
    holder, other = One(11, 10), One(10, 10)
    assert pick_endpoint([other, holder], holder) is holder


def test_a_holder_without_a_known_limit_is_left_when_it_has_much_more_to_do() -> None:
    holder, other = One(2 * 4 + PREFIX_BONUS + 1), One(4)
    assert pick_endpoint([holder, other], holder) is other


def test_a_holder_that_left_is_not_chosen() -> None:
    gone, other = One(0), One(50)
    assert pick_endpoint([other], gone) is other

"""Where an environment stands: what is past, and which draw is the first that the API does not have."""

from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.api.client.resume_state import ResumeState
from hermes_rl.serving.cursor import CompletedDraws, DrawCursor


@given(st.integers(0, 20), st.frozensets(st.integers(0, 40)))
def test_all_below_a_number_and_some_above_it_are_past(below: int, above: frozenset[int]) -> None:
    past = CompletedDraws(below, above)
    expected = set(range(below)) | above
    assert set(past) == {number for number in range(-2, 50) if number in past} == expected
    assert len(past) == len(expected)


def test_which_item_a_past_draw_was_is_not_known() -> None:
    assert CompletedDraws(3, ())[2] is None


def test_draws_in_the_spool_and_at_the_api_are_past() -> None:
    past = DrawCursor(ResumeState(2, frozenset({4})), {5}).past
    assert [number for number in range(8) if number not in past] == [2, 3, 6, 7]


def test_there_is_no_cursor_before_the_first_draw() -> None:
    assert DrawCursor(ResumeState(), ()).cursor(()) is None


def test_the_cursor_is_the_lowest_draw_in_flight_or_in_the_spool() -> None:
    place = DrawCursor(ResumeState(2), ())
    for number in (2, 3, 4):
        place.begin(number)
    place.finish(2)
    assert place.cursor({2}) == 2
    assert place.cursor(()) == 3


def test_the_cursor_is_the_next_draw_when_the_api_has_all() -> None:
    place = DrawCursor(ResumeState(2), ())
    place.begin(2)
    place.finish(2)
    assert place.cursor(()) == 3


def test_a_draw_that_was_given_up_holds_the_cursor_back() -> None:
    place = DrawCursor(ResumeState(), ())
    for number in (0, 1):
        place.begin(number)
    place.finish(1)
    assert place.cursor(()) == 0

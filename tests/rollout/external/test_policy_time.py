"""The policy's time in a program: its tokens, and what passes between an answer and the next request."""

from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.rollout.external.run import RequestInterval, policy_seconds

TIMES = st.integers(0, 50)


@st.composite
def requests(draw: st.DrawFn) -> list[RequestInterval]:
    """In whole seconds, so that the oracle can count them one by one."""
    made = []
    for _ in range(draw(st.integers(0, 6))):
        start = draw(TIMES)
        end = draw(st.one_of(st.none(), st.integers(start, 50)))
        made.append(RequestInterval(start, end, end is not None and draw(st.booleans())))
    return made


def spent(*requests: RequestInterval, now: float, tokens: int = 0) -> float:
    return policy_seconds(requests, now, tokens=tokens, seconds_per_token=0.5)


def test_before_the_first_answer_nothing_is_spent() -> None:
    assert spent(RequestInterval(1, None, False), now=100) == 0.0


def test_a_request_that_was_refused_does_not_begin_it() -> None:
    assert spent(RequestInterval(1, 2, False), now=100) == 0.0


def test_what_passes_between_an_answer_and_the_next_request_is_the_policys() -> None:
    assert spent(RequestInterval(0, 10, True), RequestInterval(13, 20, True), now=20) == 3.0


def test_a_request_under_way_costs_nothing() -> None:
    assert spent(RequestInterval(0, 10, True), RequestInterval(12, None, False), now=500) == 2.0


def test_requests_at_the_same_time_are_counted_once() -> None:
    assert (
        spent(RequestInterval(0, 10, True), RequestInterval(11, 20, True), RequestInterval(12, 30, True), now=31) == 2.0
    )


def test_each_token_costs_its_share() -> None:
    assert spent(RequestInterval(0, 10, True), now=10, tokens=4) == 2.0


@given(requests())
def test_it_is_what_counting_second_by_second_gives(made: list[RequestInterval]) -> None:
    now = 50
    first = min((one.end for one in made if one.answered and one.end is not None), default=None)
    idle = 0
    if first is not None:
        for second in range(int(first), now):
            idle += not any(one.start <= second < (now if one.end is None else one.end) for one in made)
    assert spent(*made, now=now) == idle

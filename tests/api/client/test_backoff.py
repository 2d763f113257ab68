from hermes_rl.core.backoff import Backoff


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 5.0)
    due = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert all(most / 2 <= backoff.next() <= most for most in due)


def test_after_an_answer_the_waits_begin_anew() -> None:
    backoff = Backoff(0.1, 5.0)
    for _ in range(10):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 0.1


def test_two_askers_do_not_wait_in_step() -> None:
    one, other = Backoff(), Backoff()
    assert [one.next() for _ in range(5)] != [other.next() for _ in range(5)]


def test_an_outage_of_days_overflows_nothing() -> None:
    backoff = Backoff()
    assert max(backoff.next() for _ in range(5000)) <= 5.0

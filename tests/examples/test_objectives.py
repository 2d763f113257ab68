"""The example objectives by hand: what they add to truncated importance sampling."""

from dataclasses import replace
from math import log

import pytest

from examples.extensions.entropy_bonus import COEFFICIENT, TARGET, entropy_bonus
from examples.extensions.token_credit import token_credit
from tests.training.token_rows import sequence


def test_a_group_that_explores_enough_gets_no_bonus() -> None:
    one = sequence([log(0.5), log(0.25)], [log(0.5), log(0.25)], [1.0, 1.0])
    assert entropy_bonus([one])[0] == pytest.approx([1.0, 1.0])


def test_a_certain_group_gains_on_its_less_likely_tokens() -> None:
    now = [log(0.99), log(0.9)]
    one = sequence(now, now, [0.0, 0.0])
    mean = -(now[0] + now[1]) / 2
    due = [COEFFICIENT * (TARGET - mean) * (-value - mean) for value in now]
    assert due[0] < 0 < due[1]
    assert entropy_bonus([one])[0] == pytest.approx(due, rel=1e-5)


def test_entropy_is_that_of_the_group_and_not_of_the_sequence() -> None:
    now = [log(0.99), log(0.9)]
    certain, uncertain = sequence(now, now, [0.0, 0.0]), sequence([log(0.01)], [log(0.01)], [0.0])
    assert entropy_bonus([certain, uncertain])[0].tolist() == [0.0, 0.0]
    assert entropy_bonus([certain, replace(uncertain, group=1)])[0].all()


def test_credit_goes_to_the_surprising_tokens() -> None:
    then = [-1.0, -3.0, 0.0]
    assert token_credit([sequence(then, then, [2.0, 2.0, 0.0], [1, 1, 0])])[0] == pytest.approx([1.0, 3.0, 0.0])


def test_credit_without_surprise_is_the_advantage() -> None:
    assert token_credit([sequence([0.0, 0.0], [0.0, 0.0], [2.0, 2.0])])[0].tolist() == [2.0, 2.0]

"""Scores that differ by rounding are equal, in every comparison."""

import pytest

from hermes_rl.core.tolerance import distinct_scores, exceeds, passes, same_score

JUST_BELOW = 0.1 + 0.7  # 0.7999999999999999


def test_a_sum_of_components_passes_at_its_own_value() -> None:
    assert JUST_BELOW < 0.8
    assert passes(JUST_BELOW, 0.8)
    assert not exceeds(0.8, JUST_BELOW)


@pytest.mark.parametrize(("score", "passed"), [(1.0, True), (1.1, True), (0.999, False), (1 - 1e-12, True)])
def test_a_score_passes_from_the_pass_score_on(score: float, passed: bool) -> None:
    assert passes(score, 1.0) is passed


def test_the_tolerance_grows_with_large_scores_and_not_beyond_rounding() -> None:
    assert same_score(1e9, 1e9 + 0.5)
    assert not same_score(1e-3, 2e-3)
    assert not same_score(1e9, 1e9 + 2)


@pytest.mark.parametrize(("one", "other", "same"), [(None, None, True), (None, 0.0, False), (0.0, None, False)])
def test_no_score_equals_only_no_score(one: float | None, other: float | None, same: bool) -> None:
    assert same_score(one, other) is same


def test_scores_are_counted_once_each() -> None:
    assert distinct_scores([1.0, 0.8, JUST_BELOW, 1.0]) == [JUST_BELOW, 1.0]

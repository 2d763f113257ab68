import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.training.advantages import (
    Advantage,
    ScoredTurns,
    group_advantages,
    leave_one_out,
    mean,
    mean_std,
    returns_to_go,
)
from tests.training.plain_reference import advantages_of
from tests.training.recorded_groups import SCORES

FINITE = st.floats(allow_nan=False, allow_infinity=False)
ORDINARY = st.floats(-1e6, 1e6)
BASELINES = st.sampled_from([mean, mean_std, leave_one_out])


def advantages(*scores: float, baseline: Advantage = mean) -> list[float]:
    return list(map(float, baseline(np.array(scores))))


def by_turn(*rollouts: ScoredTurns, baseline: Advantage = mean) -> list[list[float]]:
    return [one.tolist() for one in group_advantages(rollouts, baseline, per_turn=True)]


def test_an_advantage_is_the_score_less_the_mean_of_the_group() -> None:
    assert advantages(1.0, 0.0, 0.0, 0.0) == [0.75, -0.25, -0.25, -0.25]


def test_a_standard_deviation_is_that_of_the_group_itself() -> None:
    assert advantages(1.0, 0.0, baseline=mean_std) == [1.0, -1.0]


def test_leaving_one_out_compares_with_the_others_only() -> None:
    assert advantages(1.0, 0.0, 0.0, baseline=leave_one_out) == [1.0, -0.5, -0.5]


@given(st.lists(SCORES, max_size=9), BASELINES)
def test_advantages_are_those_of_plain_loops_over_exact_fractions(scores: list[float], baseline: Advantage) -> None:
    assert advantages(*scores, baseline=baseline) == pytest.approx(
        advantages_of(scores, baseline.__name__), rel=1e-12, abs=1e-12
    )


@given(st.lists(ORDINARY, min_size=2, max_size=9, unique=True), BASELINES)
def test_the_order_of_scores_is_the_order_of_advantages(scores: list[float], baseline: Advantage) -> None:
    worth = advantages(*scores, baseline=baseline)
    ordered = [one for _, one in sorted(zip(scores, worth, strict=True))]
    assert ordered == sorted(worth)


@given(st.lists(ORDINARY, max_size=9), BASELINES)
def test_advantages_of_a_group_add_up_to_nothing(scores: list[float], baseline: Advantage) -> None:
    assert math.fsum(advantages(*scores, baseline=baseline)) == pytest.approx(0, abs=1e-8)


@given(FINITE, BASELINES)
def test_a_group_of_one_has_nothing_to_be_compared_with(score: float, baseline: Advantage) -> None:
    assert advantages(score, baseline=baseline) == [0.0]


@given(FINITE, st.integers(1, 9), BASELINES)
def test_equal_scores_are_worth_exactly_nothing(score: float, count: int, baseline: Advantage) -> None:
    assert advantages(*[score] * count, baseline=baseline) == [0.0] * count


def test_a_last_digit_is_no_difference() -> None:
    assert advantages(0.1 + 0.2, 0.3, baseline=mean_std) == [0.0, 0.0]


def test_a_small_difference_of_large_scores_is_one() -> None:
    assert advantages(1e9, 1e9 + 0.5) == [-0.25, 0.25]


def test_a_negative_zero_is_a_zero() -> None:
    assert advantages(-0.0, 0.0) == [0.0, 0.0]


@given(st.lists(FINITE, max_size=9), BASELINES)
def test_no_scores_make_a_nan(scores: list[float], baseline: Advantage) -> None:
    assert not np.isnan(advantages(*scores, baseline=baseline)).any()


def test_the_mean_of_huge_scores_does_not_overflow() -> None:
    assert advantages(1e308, 1e308, 0.0, 0.0) == pytest.approx([5e307, 5e307, -5e307, -5e307])


def test_huge_scores_have_a_standard_deviation() -> None:
    assert advantages(1.7e308, -1.7e308, baseline=mean_std) == pytest.approx([1.0, -1.0])


def test_the_smallest_scores_have_a_standard_deviation() -> None:
    assert advantages(5e-324, 0.0, baseline=mean_std) == [1.0, -1.0]


def test_all_turns_of_a_rollout_have_its_advantage() -> None:
    rollouts = [ScoredTurns(1.0, 3), ScoredTurns(0.0, 1)]
    assert [one.tolist() for one in group_advantages(rollouts, mean)] == [[0.5, 0.5, 0.5], [-0.5]]


def test_turn_scores_count_only_where_turns_are_compared() -> None:
    rollouts = [ScoredTurns(1.0, 2, (5.0, 7.0)), ScoredTurns(0.0, 2, (1.0, 1.0))]
    assert [one.tolist() for one in group_advantages(rollouts, mean)] == [[0.5, 0.5], [-0.5, -0.5]]


def test_a_turn_is_worth_what_is_scored_from_it_on() -> None:
    assert returns_to_go(ScoredTurns(9.0, 3, (1.0, 2.0, 4.0))).tolist() == [7.0, 6.0, 4.0]


def test_turns_after_the_last_scored_one_score_nothing() -> None:
    assert returns_to_go(ScoredTurns(9.0, 3, (1.0,))).tolist() == [1.0, 0.0, 0.0]


def test_a_rollout_without_turn_scores_has_its_score_in_all_turns() -> None:
    assert returns_to_go(ScoredTurns(9.0, 2)).tolist() == [9.0, 9.0]


def test_a_turn_is_compared_with_the_same_turn_of_the_others() -> None:
    assert by_turn(ScoredTurns(0.0, 2, (1.0, 1.0)), ScoredTurns(0.0, 2, (1.0, 0.0))) == [[0.5, 0.5], [-0.5, -0.5]]


def test_a_turn_is_compared_only_with_rollouts_that_got_so_far() -> None:
    longer, other, short = ScoredTurns(0.0, 2, (0.0, 3.0)), ScoredTurns(0.0, 2, (0.0, 1.0)), ScoredTurns(2.0, 1)
    assert by_turn(longer, other, short) == [[1.0, 1.0], [-1.0, -1.0], [0.0]]


def test_a_turn_that_only_one_rollout_has_is_worth_nothing() -> None:
    assert by_turn(ScoredTurns(0.0, 2, (1.0, 1.0)), ScoredTurns(1.0, 1)) == [[0.5, 0.0], [-0.5]]


def test_a_turn_that_scored_alike_everywhere_is_worth_nothing() -> None:
    rollouts = [ScoredTurns(0.0, 2, (1.0, 0.1)), ScoredTurns(0.0, 2, (0.0, 0.1)), ScoredTurns(0.0, 2, (0.0, 0.1))]
    assert [worth[1] for worth in by_turn(*rollouts, baseline=mean_std)] == [0.0, 0.0, 0.0]


def test_a_rollout_without_turns_has_no_advantages() -> None:
    assert by_turn(ScoredTurns(1.0, 0), ScoredTurns(0.0, 1)) == [[], [0.0]]


@given(st.lists(st.tuples(FINITE, st.lists(FINITE, max_size=4), st.integers(0, 3)), max_size=5), BASELINES)
def test_no_turn_scores_make_a_nan(drawn: list[tuple[float, list[float], int]], baseline: Advantage) -> None:
    rollouts = [ScoredTurns(score, len(turns) + more, tuple(turns)) for score, turns, more in drawn]
    assert not any(np.isnan(worth).any() for worth in group_advantages(rollouts, baseline, per_turn=True))

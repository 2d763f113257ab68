import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.training.advantages import (
    Advantage,
    ScoredTurns,
    Scores,
    get_advantage,
    group_advantages,
    leave_one_out,
    mean,
    mean_std,
    values_to_go,
)
from tests.training.plain_reference import advantages_of
from tests.training.recorded_groups import SCORES

FINITE = st.floats(allow_nan=False, allow_infinity=False)
ORDINARY = st.floats(-1e6, 1e6)
BUILT_IN = {"mean": mean, "mean_std": mean_std, "leave_one_out": leave_one_out}
BASELINES = st.sampled_from(list(BUILT_IN.values()))
POPULATION = partial(mean_std, epsilon=0.0, sample_std=False)


def advantages(*scores: float, baseline: Advantage = mean) -> list[float]:
    return list(map(float, baseline(np.array(scores))))


def by_turn(*rollouts: ScoredTurns, baseline: Advantage = mean) -> list[list[float]]:
    return [row.tolist() for row in group_advantages(rollouts, baseline, per_turn=True)]


def test_an_advantage_is_the_score_less_the_mean_of_the_group() -> None:
    assert advantages(1.0, 0.0, 0.0, 0.0) == [0.75, -0.25, -0.25, -0.25]


def test_a_standard_deviation_is_that_of_a_sample_as_in_trl() -> None:
    # torch.std([1, 0]) = sqrt(0.5); TRL divides 0.5 by sqrt(0.5) + 1e-4.
    share = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert advantages(1.0, 0.0, baseline=mean_std) == pytest.approx([share, -share])


def test_a_standard_deviation_may_be_that_of_the_group_itself() -> None:
    assert advantages(1.0, 0.0, baseline=POPULATION) == [1.0, -1.0]


def test_scores_that_hardly_differ_are_not_inflated_to_one() -> None:
    small = advantages(0.0, 0.0, 0.0, 1e-6, baseline=mean_std)
    assert small == pytest.approx([-0.25e-6 / 1.005e-4] * 3 + [0.75e-6 / 1.005e-4])
    assert max(map(abs, small)) < 1e-2
    assert advantages(0.0, 0.0, 0.0, 1e-6, baseline=POPULATION) == pytest.approx(
        [-0.577, -0.577, -0.577, 1.732], abs=1e-3
    )


def test_the_settings_of_a_standard_deviation_reach_only_the_advantage_that_has_one() -> None:
    scores = np.array([1.0, 0.0])
    assert get_advantage("mean_std", epsilon=0.5, sample_std=False)(scores).tolist() == [0.5, -0.5]
    assert get_advantage("mean", epsilon=0.5, sample_std=False) is mean
    assert get_advantage(f"{__name__}:halved", epsilon=0.5) is halved


def halved(values: Scores) -> Scores:
    return values / 2


def test_leaving_one_out_compares_with_the_others_only() -> None:
    assert advantages(1.0, 0.0, 0.0, baseline=leave_one_out) == [1.0, -0.5, -0.5]


@given(
    st.lists(SCORES, max_size=9), st.sampled_from(sorted(BUILT_IN)), st.sampled_from([0.0, 1e-4, 1.0]), st.booleans()
)
def test_advantages_are_those_of_plain_loops_over_exact_fractions(
    scores: list[float], baseline: str, epsilon: float, sample: bool
) -> None:
    made = advantages(*scores, baseline=get_advantage(baseline, epsilon=epsilon, sample_std=sample))
    assert made == pytest.approx(advantages_of(scores, baseline, epsilon, sample), rel=1e-12, abs=1e-12)


@given(st.lists(ORDINARY, min_size=2, max_size=9, unique=True), BASELINES)
def test_the_order_of_scores_is_the_order_of_advantages(scores: list[float], baseline: Advantage) -> None:
    worth = advantages(*scores, baseline=baseline)
    ordered = [one for _, one in sorted(zip(scores, worth, strict=True))]
    assert ordered == sorted(worth)


@given(st.lists(ORDINARY, max_size=9), BASELINES)
def test_advantages_of_a_group_add_up_to_nothing(scores: list[float], baseline: Advantage) -> None:
    assert math.fsum(advantages(*scores, baseline=baseline)) == pytest.approx(0, abs=1e-8)


@given(st.lists(SCORES, max_size=9), st.integers(-1000, 1000), BASELINES)
def test_a_constant_added_to_all_scores_changes_nothing(
    scores: list[float], constant: int, baseline: Advantage
) -> None:
    moved = advantages(*[score + constant for score in scores], baseline=baseline)
    assert moved == pytest.approx(advantages(*scores, baseline=baseline), abs=1e-8)


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
def test_finite_scores_have_finite_advantages(scores: list[float], baseline: Advantage) -> None:
    assert np.isfinite(advantages(*scores, baseline=baseline)).all()


def test_the_mean_of_huge_scores_does_not_overflow() -> None:
    assert advantages(1e308, 1e308, 0.0, 0.0) == pytest.approx([5e307, 5e307, -5e307, -5e307])


def test_huge_scores_have_a_standard_deviation() -> None:
    assert advantages(1.7e308, -1.7e308, baseline=mean_std) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])


def test_the_smallest_scores_are_far_below_epsilon() -> None:
    assert advantages(5e-324, 0.0, baseline=mean_std) == pytest.approx([0.0, 0.0], abs=1e-300)
    assert advantages(5e-324, 0.0, baseline=POPULATION) == [1.0, -1.0]


def test_turn_scores_count_only_where_turns_are_compared() -> None:
    rollouts = [ScoredTurns(1.0, (5.0, 7.0)), ScoredTurns(0.0, (1.0, 1.0))]
    assert group_advantages(rollouts, mean).tolist() == [[0.5], [-0.5]]


def test_a_turn_is_worth_what_is_scored_from_it_on_and_the_outcome() -> None:
    assert values_to_go(ScoredTurns(8.0, (1.0, 2.0, 4.0)), 3).tolist() == [15.0, 14.0, 12.0, 8.0]


def test_turns_after_the_last_scored_one_are_worth_the_outcome() -> None:
    assert values_to_go(ScoredTurns(9.0, (1.0,)), 3).tolist() == [10.0, 9.0, 9.0, 9.0]


def test_a_rollout_without_turn_scores_is_worth_its_outcome_in_all_turns() -> None:
    assert values_to_go(ScoredTurns(9.0), 2).tolist() == [9.0, 9.0, 9.0]


def test_a_turn_is_compared_with_the_same_turn_of_the_others() -> None:
    better, worse = ScoredTurns(0.0, (1.0, 1.0)), ScoredTurns(0.0, (1.0, 0.0))
    assert by_turn(better, worse) == [[0.5, 0.5, 0.0], [-0.5, -0.5, 0.0]]


def test_the_outcome_counts_where_turns_are_scored() -> None:
    solved, failed = ScoredTurns(1.0, (0.5,)), ScoredTurns(0.0, (0.5,))
    assert by_turn(solved, failed) == [[0.5, 0.5], [-0.5, -0.5]]


def test_the_worked_example_of_the_guide() -> None:
    """docs/training.md has these numbers."""
    a, b, c = ScoredTurns(1.0, (0.0, 0.5, 0.25)), ScoredTurns(0.0, (0.25,)), ScoredTurns(1.0, (0.0, 0.0))
    assert values_to_go(a, 3).tolist() == [1.75, 1.75, 1.25, 1.0]
    assert values_to_go(b, 3).tolist() == [0.25, 0.0, 0.0, 0.0]
    assert values_to_go(c, 3).tolist() == [1.0, 1.0, 1.0, 1.0]
    assert by_turn(a, b, c) == [
        pytest.approx([3 / 4, 5 / 6, 1 / 2, 1 / 3]),
        pytest.approx([-3 / 4, -11 / 12, -3 / 4, -2 / 3]),
        pytest.approx([0, 1 / 12, 1 / 4, 1 / 3]),
    ]


def test_a_turn_that_only_one_rollout_reached_is_compared_with_the_outcomes_of_the_others() -> None:
    long, short = ScoredTurns(0.0, (1.0, 1.0)), ScoredTurns(1.0)
    assert by_turn(long, short) == [[0.5, 0.0, -0.5], [-0.5, 0.0, 0.5]]


def test_a_turn_that_scored_alike_everywhere_is_worth_nothing() -> None:
    rollouts = [ScoredTurns(0.0, (1.0, 0.1)), ScoredTurns(0.0, (0.0, 0.1)), ScoredTurns(0.0, (0.0, 0.1))]
    assert [worth[1] for worth in by_turn(*rollouts, baseline=mean_std)] == [0.0, 0.0, 0.0]


def test_an_empty_group_has_no_advantages() -> None:
    assert by_turn() == []


TURNS = st.lists(st.builds(ScoredTurns, SCORES, st.lists(SCORES, max_size=4).map(tuple)), max_size=6)
EXTREME = st.lists(st.builds(ScoredTurns, FINITE, st.lists(FINITE, max_size=4).map(tuple)), max_size=5)


@given(TURNS)
def test_advantages_of_every_turn_add_up_to_nothing(rollouts: list[ScoredTurns]) -> None:
    assert group_advantages(rollouts, mean, per_turn=True).sum(axis=0) == pytest.approx(0, abs=1e-12)


@given(TURNS, st.integers(-9, 9), BASELINES)
def test_a_constant_added_to_all_outcomes_changes_no_turn(
    rollouts: list[ScoredTurns], constant: int, baseline: Advantage
) -> None:
    moved = [ScoredTurns(rollout.score + constant, rollout.turn_scores) for rollout in rollouts]
    before, after = (group_advantages(group, baseline, per_turn=True) for group in (rollouts, moved))
    assert after == pytest.approx(before, abs=1e-8)


@given(EXTREME, BASELINES)
def test_finite_turn_scores_have_finite_advantages(rollouts: list[ScoredTurns], baseline: Advantage) -> None:
    assert np.isfinite(group_advantages(rollouts, baseline, per_turn=True)).all()

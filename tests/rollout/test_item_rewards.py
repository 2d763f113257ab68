import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.rollout.item_rewards import ItemRewards, RewardEstimate

SCORES = st.lists(st.floats(-10, 10), min_size=1, max_size=8)


def after(*groups: list[float], half_life: float = 1.0) -> RewardEstimate:
    rewards = ItemRewards(half_life)
    for scores in groups:
        rewards.add("item", scores)
    return rewards.estimates["item"]


def test_one_group_gives_its_mean_and_unbiased_variance() -> None:
    assert after([0.0, 1.0, 1.0, 1.0]) == RewardEstimate(mean=0.75, variance=0.25, groups=1, rollouts=4, last=1)


def test_an_earlier_group_counts_half_after_a_half_life() -> None:
    # [0, 1] counts half: mean (2 + 0.5) / 3; squares 0.5 / 2 over 3 - 1.5 degrees of freedom.
    assert after([0.0, 1.0], [1.0, 1.0]) == pytest.approx((2.5 / 3, 1 / 6, 1.5, 3, 2))


def test_a_half_life_is_counted_in_groups_of_the_item() -> None:
    assert after(*[[0.0, 1.0]] * 3, half_life=2.0).rollouts == pytest.approx(2 + 2 * 0.5**0.5 + 1)
    rewards = ItemRewards()
    rewards.add("item", [0.0, 1.0])
    for _ in range(10):
        rewards.add("other", [1.0])
    assert rewards.estimates["item"].rollouts == 2


def test_a_difference_between_groups_is_no_variance() -> None:
    assert after([0.0] * 64, [1.0] * 64).variance == 0


@given(st.floats(-1e6, 1e6), st.integers(2, 20))
def test_equal_scores_have_no_variance_however_they_are_rounded(score: float, count: int) -> None:
    assert after([score] * count, [score] * count).variance == 0


def test_a_single_score_tells_nothing_about_the_variance() -> None:
    alone = after([0.7])
    assert (alone.mean, alone.variance, alone.degrees) == (0.7, 0, 0)
    assert after([0.0, 1.0], [1.0]).variance == 0.5


def test_a_group_without_a_score_counts_for_nothing() -> None:
    rewards = ItemRewards()
    rewards.add("item", [])
    assert rewards == ItemRewards()


@given(st.lists(st.tuples(st.sampled_from("abc"), SCORES), max_size=20))
def test_the_largest_variance_is_that_of_an_item(groups: list[tuple[str, list[float]]]) -> None:
    rewards = ItemRewards()
    for item_id, scores in groups:
        rewards.add(item_id, scores)
        assert rewards.largest_variance == max(estimate.variance for estimate in rewards.estimates.values())

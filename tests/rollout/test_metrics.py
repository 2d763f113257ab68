import pytest

from hermes_rl.rollout.metrics import RolloutCounts


@pytest.mark.parametrize(
    ("scores", "pass_score", "share"),
    [
        ([1.0, 0.0, 1.0, 0.5], 1.0, 0.5),
        ([1.0, 0.0, 1.0, 0.5], 0.5, 0.75),
        ([0.2], 1.0, 0.0),
        ([], 1.0, None),
        ([0.1 + 0.7], 0.8, 1.0),
    ],
)
def test_percent_correct_is_the_share_of_scored_rollouts_that_passed(
    scores: list[float], pass_score: float, share: float | None
) -> None:
    assert RolloutCounts(scores=scores, pass_score=pass_score).summary()["percent_correct"] == share

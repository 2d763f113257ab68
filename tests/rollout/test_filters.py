import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.trajectory import Rollout, Sampling, Sequence, StopReason
from hermes_rl.rollout.filters import (
    DistinctScores,
    GroupRules,
    MinViableGroup,
    Retries,
    SequenceLimit,
    WholeGroup,
)

FAILED = Failure(FailureSource.SANDBOX, "start", "no room")


def rollout(score: float | None, *, tokens: int = 0) -> Rollout:
    column = (0,) * tokens
    sequences = (Sequence(column, column, column, column, Sampling(1.0)),) if tokens else ()
    return Rollout(
        item_id="i",
        index=0,
        seed=0,
        messages=[],
        score=score,
        stop_reason=StopReason.NATURAL if score is not None else None,
        failure=FAILED if score is None else None,
        sequences=sequences,
    )


def rollouts(*scores: float | None) -> list[Rollout]:
    return [rollout(score) for score in scores]


@pytest.mark.parametrize(("size", "needed"), [(1, 1), (2, 2), (4, 3), (8, 6), (16, 12), (5, 4)])
def test_three_quarters_must_survive_and_never_one_alone(size: int, needed: int) -> None:
    assert MinViableGroup().needed(size) == needed


@given(st.integers(1, 64), st.floats(0.01, 1.0))
def test_a_group_stands_from_its_needed_number_on(size: int, share: float) -> None:
    rule = MinViableGroup(share)
    needed = rule.needed(size)
    assert math.ceil(share * size - 1e-9) <= needed <= size
    scores = [0.0] * needed + [None] * (size - needed)
    assert rule.reason(rollouts(*scores)) is None
    assert rule.reason(rollouts(*scores[1:], None)) == "too_few_scored"


def test_a_whole_group_lacks_nobody() -> None:
    assert WholeGroup().reason(rollouts(1.0, 0.0)) is None
    assert WholeGroup().reason(rollouts(1.0, None)) == "too_few_scored"


def test_equal_scores_are_withheld_and_a_lone_one_is_not() -> None:
    assert DistinctScores().reason(rollouts(1.0, 1.0, None)) == "equal_scores"
    assert DistinctScores().reason(rollouts(1.0, 0.5)) is None
    assert DistinctScores(0.5).reason(rollouts(1.0, 0.5)) == "equal_scores"
    assert DistinctScores().reason(rollouts(1.0)) is None
    assert DistinctScores().reason(rollouts(0.8, 0.1 + 0.7)) == "equal_scores"


def test_an_over_long_rollout_is_withheld_and_stays_in_the_baseline() -> None:
    rules = GroupRules(sequence_limit=SequenceLimit(10))
    kept, withheld = rules.apply([rollout(1.0, tokens=11), rollout(0.0, tokens=10), *rollouts(0.0, 0.0)])
    assert [one.withheld for one in kept] == ["too_long", None, None, None]
    assert [one.in_baseline for one in kept] == [True] * 4
    assert withheld is None
    kept, withheld = rules.apply([rollout(1.0, tokens=11), rollout(1.0, tokens=10), *rollouts(1.0, 1.0)])
    assert withheld == "equal_scores"
    assert [one.score for one in kept] == [1.0] * 4


@pytest.mark.parametrize(("long", "reason"), [(2, None), (3, "too_few_scored"), (4, "too_few_scored")])
def test_two_rollouts_of_a_group_must_be_short_enough(long: int, reason: str | None) -> None:
    rules = GroupRules(sequence_limit=SequenceLimit(10))
    made = [rollout(float(at), tokens=11 if at < long else 9) for at in range(4)]
    assert rules.apply(made)[1] == reason


@pytest.mark.parametrize("withheld", ["no_tokens", "not_returned", "why"])
def test_rollouts_that_may_not_be_the_policys_are_not_compared(withheld: str) -> None:
    odd = replace(rollout(1.0), withheld=withheld)
    assert DistinctScores().reason([odd, *rollouts(0.0, 0.0)]) == "equal_scores"
    assert MinViableGroup(1.0).reason([odd, *rollouts(0.0, 1.0)]) == "too_few_scored"


def test_only_faults_of_the_world_are_tried_again_and_so_often() -> None:
    retries = Retries(2)
    assert [retries.should_retry(FAILED, tries) for tries in (1, 2, 3)] == [True, True, False]
    assert not retries.should_retry(None, 1)
    assert not retries.should_retry(Failure(FailureSource.VERIFIER, "raised", ""), 1)
    assert not retries.should_retry(Failure(FailureSource.ENVIRONMENT, "prompt", ""), 1)


def test_what_has_grown_too_old_for_the_trainer_is_not_tried_again() -> None:
    assert not Retries(2).should_retry(Failure(FailureSource.FRAMEWORK, "stale", ""), 1)

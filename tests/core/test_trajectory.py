import math
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.core.errors import Failure, FailureSource, VerifierError
from hermes_rl.core.trajectory import (
    Group,
    Provenance,
    Rollout,
    SampledCall,
    Sampling,
    Sequence,
    StopReason,
    Usage,
    validate_score,
)

# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

FAILURE = Failure(FailureSource.ENDPOINT, "http_500", "it broke")
PROVENANCE = Provenance(environment="e", environment_hash="h", model="m", versions={})


def rollout(**fields: Any) -> Rollout:
    return Rollout(item_id="i", index=0, seed=1, messages=[], **fields)


def scored(score: float) -> Rollout:
    return rollout(score=score, stop_reason=StopReason.NATURAL)


class ScalarOfALibrary:
    """What numpy.float32 is to us: no float, registered as Real."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


Real.register(ScalarOfALibrary)


@pytest.mark.parametrize(
    ("returned", "score"),
    [(0.25, 0.25), (1, 1.0), (True, 1.0), (False, 0.0), (Fraction(1, 4), 0.25), (ScalarOfALibrary(0.5), 0.5)],
)
def test_any_real_number_is_a_score_and_becomes_a_float(returned: object, score: float) -> None:
    value = validate_score(returned)
    assert (type(value), value) == (float, score)


@pytest.mark.parametrize("returned", [None, "1.0", [1.0], {}, 1j, Decimal(1), object()])
def test_a_reward_that_is_no_number_is_the_verifiers_failure(returned: object) -> None:
    with pytest.raises(VerifierError) as caught:
        validate_score(returned)
    assert caught.value.failure.cause == "not_a_number"


@pytest.mark.parametrize("returned", [math.nan, math.inf, -math.inf, ScalarOfALibrary(math.nan), 10**400])
def test_a_reward_that_is_not_finite_is_the_verifiers_failure(returned: object) -> None:
    with pytest.raises(VerifierError) as caught:
        validate_score(returned)
    assert caught.value.failure.cause == "not_finite"


def test_the_failure_names_what_was_returned_and_what_to_return() -> None:
    with pytest.raises(VerifierError, match=r"'high' \(str\); return a finite float"):
        validate_score("high")


def test_a_rollout_has_a_score_or_a_failure_and_never_both() -> None:
    with pytest.raises(ValueError, match="either a score or a failure"):
        rollout(score=1.0, stop_reason=StopReason.NATURAL, failure=FAILURE)


def test_a_rollout_has_one_of_the_two() -> None:
    with pytest.raises(ValueError, match="either a score or a failure"):
        rollout()


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 1, True, "1"])
def test_a_rollouts_score_is_a_finite_float(score: Any) -> None:
    with pytest.raises(ValueError, match="finite float"):
        scored(score)


def test_a_scored_rollout_says_why_it_stopped() -> None:
    with pytest.raises(ValueError, match="why it stopped"):
        rollout(score=1.0)


def test_a_rollout_whose_verifier_failed_may_still_say_why_it_stopped() -> None:
    assert not rollout(failure=FAILURE, stop_reason=StopReason.MAX_TURNS).scored


def test_a_zero_is_a_score() -> None:
    assert scored(0.0).scored


COLUMNS: dict[str, Any] = {
    "tokens": (1, 2),
    "mask": (0, 1),
    "logprobs": (None, -0.5),
    "versions": (None, 3),
    "sampling": Sampling(1.0),
}


@pytest.mark.parametrize("column", ["tokens", "mask", "logprobs", "versions"])
def test_a_sequences_columns_have_one_length(column: str) -> None:
    with pytest.raises(ValueError, match="same length"):
        Sequence(**{**COLUMNS, column: (1,)})


@pytest.mark.parametrize("calls", [[(0, 2)], [(0, -1)], [(0, 1), (1, 1)], [(0, 1), (1, 0)], [(-1, 1)]], ids=str)
def test_the_calls_of_a_sequence_begin_in_it_one_after_the_other(calls: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="out of order"):
        Sequence(**COLUMNS, calls=tuple(SampledCall(*call) for call in calls))


def test_a_sequence_may_be_empty() -> None:
    assert not Sequence((), (), (), (), Sampling(1.0)).tokens


def test_a_group_counts_only_the_scored() -> None:
    group = Group(
        item_id="i",
        item={},
        rollouts=(scored(0.5), rollout(failure=FAILURE), scored(0.0)),
        provenance=PROVENANCE,
    )
    assert group.scores == [0.5, 0.0]


def test_a_group_keeps_its_unscored_rollouts() -> None:
    failed = rollout(failure=FAILURE)
    group = Group(item_id="i", item={}, rollouts=(failed,), provenance=PROVENANCE)
    assert (group.rollouts, group.scored) == ((failed,), ())


def test_usage_adds_what_was_said() -> None:
    assert Usage(1, 2) + Usage(10, 20) == Usage(11, 22)


def test_usage_that_was_not_said_is_not_counted_as_zero() -> None:
    assert Usage(None, None) + Usage(None, 5) == Usage(None, 5)


@UNHURRIED
@given(st.lists(st.builds(Usage, *[st.none() | st.integers(0, 10**9)] * 2)))
def test_usage_adds_up_in_any_order(usages: list[Usage]) -> None:
    assert sum(usages, Usage()) == sum(reversed(usages), Usage())

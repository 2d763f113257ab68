"""A weighted reward: its parts beside it, within its range, and clear words when names or numbers are wrong."""

import math
from typing import Any

import pytest

from hermes_rl.core.errors import VerifierError
from hermes_rl.core.trajectory import Reward
from hermes_rl.rewards.composition import weighted

SEED_WEIGHTS = {"correctness": 0.6, "tool_use": 0.2, "efficiency": 0.2}


@pytest.mark.parametrize(
    ("correctness", "tool_use", "efficiency", "score"),
    [(1.0, 1.0, 1.0, 1.0), (1.0, 0.0, 0.5, 0.7), (0.0, 1.0, 1.0, 0.4), (0.0, 0.0, 0.0, 0.0)],
)
def test_the_seeds_pattern(correctness: float, tool_use: float, efficiency: float, score: float) -> None:
    parts = {"correctness": correctness, "tool_use": tool_use, "efficiency": efficiency}
    reward = weighted(parts, SEED_WEIGHTS)
    assert reward.score == pytest.approx(score)
    assert reward.components == parts


def test_a_bonus_is_cut_and_a_penalty_does_not_go_below() -> None:
    assert weighted({"right": 1.0, "bonus": 1.0}, {"right": 1.0, "bonus": 0.1}).score == 1.0
    assert weighted({"right": 0.0, "spam": 3.0}, {"right": 1.0, "spam": -0.5}).score == 0.0
    assert weighted({"right": 0.0, "spam": 3.0}, {"right": 1.0, "spam": -0.5}, clamp=(-1.0, 1.0)).score == -1.0
    assert weighted({"right": 2.0}, {"right": 3.0}, clamp=None) == Reward(6.0, {"right": 2.0})


def test_the_order_of_the_names_changes_nothing() -> None:
    parts = {"a": 0.1, "b": 0.2, "c": 0.3}
    weights = {"a": 1 / 3, "b": 1 / 7, "c": 1 / 11}
    backwards = weighted(dict(reversed(parts.items())), dict(reversed(weights.items())))
    assert weighted(parts, weights).score == backwards.score


def test_truth_values_count_as_one_and_zero() -> None:
    assert weighted({"a": True, "b": False}, {"a": 0.5, "b": 0.5}) == Reward(0.5, {"a": 1.0, "b": 0.0})


@pytest.mark.parametrize(
    ("parts", "weights", "said"),
    [
        ({"a": 1.0}, {"b": 1.0}, "no weight for a; no component b"),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}, "no weight for b"),
        ({}, {}, "at least one component"),
    ],
)
def test_names_that_differ_are_named(parts: dict[str, float], weights: dict[str, float], said: str) -> None:
    with pytest.raises(VerifierError, match=said) as failure:
        weighted(parts, weights)
    assert failure.value.cause == "weights"


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1.0", 10**400, [1.0]])
def test_what_is_no_finite_number_has_no_score(value: Any) -> None:
    for parts, weights in (({"a": value}, {"a": 1.0}), ({"a": 1.0}, {"a": value})):
        with pytest.raises(VerifierError, match=" a is ") as failure:
            weighted(parts, weights)
        assert failure.value.cause == "not_finite"


def test_a_sum_that_overflows_has_no_score() -> None:
    with pytest.raises(VerifierError, match="sum of the weighted"):
        weighted({"a": 1e308, "b": 1e308}, {"a": 10.0, "b": 10.0})


@pytest.mark.parametrize("clamp", [(1.0, 0.0), (math.nan, 1.0)])
def test_a_clamp_the_wrong_way_round_is_refused(clamp: tuple[float, float]) -> None:
    with pytest.raises(VerifierError, match="lowest, highest"):
        weighted({"a": 1.0}, {"a": 1.0}, clamp=clamp)

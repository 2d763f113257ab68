"""Sampling by difficulty beside uniform sampling, with a simulated policy."""

import pytest

from benchmarks.item_sampling import GROUPS_GOAL, PARTS, SIGNAL_GOAL, measure
from hermes_rl.rollout.sampler import ByDifficulty, Uniform


@pytest.mark.parametrize("reward", PARTS)
def test_by_difficulty_more_groups_have_a_signal_and_fewer_are_needed(reward: str) -> None:
    uniform, ours = (measure(sampler, PARTS[reward], 2) for sampler in (Uniform(), ByDifficulty()))
    assert ours["signal_share"] >= SIGNAL_GOAL * uniform["signal_share"]
    assert ours["groups_to_mastery"] <= GROUPS_GOAL * uniform["groups_to_mastery"]

"""Losses and token weights, by hand, against plain loops, and against numerical gradients."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import OBJECTIVES
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.objectives import EngineLoss, Objective, TrainedSequence, get_objective
from tests.training.plain_reference import loss_of
from tests.training.token_rows import ROWS, Position, sequence, sequence_of

LOSSES = sorted(OBJECTIVES.builtin)
LOG = math.log


def objective(loss: str = "importance_sampling", **settings: Any) -> Objective:
    return get_objective(TrainerSettings(loss=loss, **settings))


def plain(loss: str, **settings: Any) -> Objective:
    """Without truncation."""
    return get_objective(TrainerSettings(loss=loss, max_importance_weight=None, **settings))


def total(made: Objective, rows: Sequence[TrainedSequence]) -> float:
    return float(sum(row.sum() for row in made.losses(rows)))


@given(st.lists(ROWS, min_size=1, max_size=3), st.sampled_from(LOSSES), st.floats(0.1, 1.0), st.floats(1.0, 5.0))
def test_a_loss_is_that_of_plain_loops(rows: list[list[Position]], loss: str, low: float, high: float) -> None:
    due = sum(loss_of(loss, row, low, high) for row in rows)
    made = plain(loss, clip_low=low, clip_high=high)
    assert total(made, [sequence_of(row) for row in rows]) == pytest.approx(due, rel=1e-5, abs=1e-5)


@given(ROWS, st.sampled_from(LOSSES))
def test_tokens_that_were_not_sampled_have_neither_loss_nor_weight(row: list[Position], loss: str) -> None:
    one = sequence_of(row)
    made = objective(loss)
    assert not made.losses([one])[0][~one.sampled].any()
    assert not made.weights([one])[0][~one.sampled].any()


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo"])
@given(row=ROWS)
def test_the_weights_are_the_numerical_gradient_of_the_loss(loss: str, row: list[Position]) -> None:
    one, made, by = sequence_of(row), plain(loss), 1e-6
    weights = made.weights([one])[0]
    for place in np.flatnonzero(one.sampled):
        ratio = one.ratios[place]
        if min(abs(ratio - 0.8), abs(ratio - 1.2)) < 1e-4 or ratio > 1e6:
            continue
        up, down = one.logprobs.copy(), one.logprobs.copy()
        up[place] += by
        down[place] -= by
        above, below = (made.losses([replace(one, logprobs=logprobs)])[0][place] for logprobs in (up, down))
        assert -weights[place] == pytest.approx((above - below) / (2 * by), rel=1e-3, abs=1e-6)


@given(ROWS)
def test_the_sequence_ratio_has_the_gradient_of_gspo(row: list[Position]) -> None:
    """GSPO: one ratio for a sequence, the geometric mean; its loss is that ratio by the advantage, once a sequence."""
    one, made, by = sequence_of(row), plain("importance_sampling", ratio_level="sequence"), 1e-6
    count = int(one.sampled.sum())
    if not count or np.abs(one.logprobs - one.sampling_logprobs).max() > 5:
        return
    one = replace(one, advantages=np.where(one.sampled, 1.5, 0.0))

    def gspo(logprobs: NDArray[np.float64]) -> float:
        return -1.5 * math.exp((logprobs - one.sampling_logprobs)[one.sampled].mean())

    weights = made.weights([one])[0] / count  # sequence_mean divides by the tokens
    for place in np.flatnonzero(one.sampled):
        up, down = one.logprobs.copy(), one.logprobs.copy()
        up[place] += by
        down[place] -= by
        assert -weights[place] == pytest.approx((gspo(up) - gspo(down)) / (2 * by), rel=1e-4, abs=1e-6)


def test_ppo_takes_no_gain_beyond_its_clip() -> None:
    one = sequence([LOG(0.9)], [LOG(0.3)], [2.0])
    assert objective("ppo").losses([one])[0] == pytest.approx([-1.2 * 2.0])
    assert objective("ppo").weights([one])[0].tolist() == [0.0]


def test_ppo_alone_bounds_no_ratio_of_a_negative_advantage_and_truncation_does() -> None:
    one = sequence([LOG(0.9)], [LOG(0.3)], [-2.0])
    assert plain("ppo").weights([one])[0] == pytest.approx([3.0 * -2.0])
    assert objective("ppo").weights([one])[0] == pytest.approx([2.0 * -2.0])
    assert objective("ppo").losses([one])[0] == pytest.approx([2.0 * 2.0])


def test_ppo_clips_against_the_policy_that_sampled_also_where_ratios_are_truncated() -> None:
    one = sequence([LOG(0.39), LOG(0.36)], [LOG(0.3), LOG(0.3)], [1.0, 1.0])
    assert objective("ppo", clip_high=1.25).weights([one])[0] == pytest.approx([0.0, 1.2])


def test_cispo_weights_the_logprob_by_the_clipped_ratio() -> None:
    one = sequence([LOG(0.9)], [LOG(0.3)], [2.0])
    assert objective("cispo").losses([one])[0] == pytest.approx([-1.2 * LOG(0.9) * 2.0])
    assert objective("cispo").weights([one])[0] == pytest.approx([1.2 * 2.0])


def test_importance_ratios_are_truncated_at_two_unless_told_otherwise() -> None:
    one = sequence([LOG(0.6), LOG(0.9), -1.0], [LOG(0.4), LOG(0.1), 0.0], [2.0, -2.0, 0.0], [1, 1, 0])
    assert objective().weights([one])[0] == pytest.approx([2.0 * 1.5, -2.0 * 2.0, 0.0])


def test_reinforce_ignores_the_ratio() -> None:
    one = sequence([LOG(0.6), LOG(0.9)], [LOG(0.4), LOG(0.1)], [2.0, -2.0])
    assert objective("reinforce").weights([one])[0].tolist() == [2.0, -2.0]


def test_a_band_masks_tokens_whose_ratio_is_outside() -> None:
    one = sequence([LOG(0.1), LOG(0.5), LOG(0.9)], [LOG(0.5), LOG(0.5), LOG(0.1)], [1.0, 1.0, 1.0])
    made = objective(ratio_band=(0.5, 5.0))
    assert made.weights([one])[0] == pytest.approx([0.0, 1.0, 0.0])
    assert made.ratio_shares([one])["ratio/masked"] == pytest.approx(2 / 3)


def test_a_probability_that_moved_too_far_is_masked_only_where_the_advantage_pushes_it_further() -> None:
    # Moved by +0.4, +0.4, -0.4 and by a ratio of 90 that changes the probability by 0.0089 only.
    now, then = [LOG(0.8), LOG(0.8), LOG(0.2), LOG(0.009)], [LOG(0.4), LOG(0.4), LOG(0.6), LOG(0.0001)]
    one = sequence(now, then, [1.0, -1.0, -1.0, 1.0])
    made = objective(max_probability_change=0.2)
    assert made.weights([one])[0] == pytest.approx([0.0, -2.0, 0.0, 2.0])


def test_all_tokens_of_a_sequence_share_its_ratio() -> None:
    one = sequence([LOG(0.4), LOG(0.1), -3.0], [LOG(0.1), LOG(0.1), 0.0], [1.0, -1.0, 0.0], [1, 1, 0])
    assert objective(ratio_level="sequence").weights([one])[0] == pytest.approx([2.0, -2.0, 0.0])


def test_a_ratio_beyond_all_bounds_leaves_everything_finite() -> None:
    one = sequence([0.0, 0.0], [-1e30, -1e30], [1.0, 0.0])
    for loss in LOSSES:
        assert np.isfinite(plain(loss).weights([one])[0]).all()
        assert np.isfinite(plain(loss).losses([one])[0]).all()


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({}, EngineLoss("cispo", (0.0, 2.0))),
        ({"max_importance_weight": None}, EngineLoss("importance_sampling")),
        ({"loss": "ppo"}, None),
        ({"loss": "ppo", "max_importance_weight": None}, EngineLoss("ppo", (0.8, 1.2))),
        ({"loss": "cispo"}, EngineLoss("cispo", (0.8, 1.2))),
        ({"loss": "cispo", "clip_high": 4.0}, EngineLoss("cispo", (0.8, 2.0))),
        ({"loss": "reinforce"}, EngineLoss("cispo", (1.0, 1.0))),
        ({"ratio_level": "sequence"}, None),
        ({"ratio_band": (0.5, 5.0)}, None),
        ({"max_probability_change": 0.2}, None),
    ],
)
def test_the_engine_has_a_loss_of_its_own_for_what_needs_no_forward_pass(
    settings: dict[str, Any], due: EngineLoss | None
) -> None:
    assert get_objective(TrainerSettings(**settings)).engine_loss == due


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "cispo", "max_importance_weight": 3.0}, "no effect on cispo"),
        ({"loss": "reinforce", "max_importance_weight": 3.0}, "no effect on reinforce"),
        ({"loss": "ppo", "max_importance_weight": 1.1}, "must exceed clip_high"),
        ({"loss": "ppo", "max_probability_change": 0.2}, "replaces ppo's clipping"),
        ({"loss": "ppo", "ratio_band": (0.9, 1.1)}, "nothing would be clipped"),
        ({"ratio_band": (1.5, 5.0)}, "low below 1"),
        ({"ratio_band": (0.5, 3.0), "max_importance_weight": 4.0}, "no effect: ratio_band"),
        ({"ratio_level": "sequence", "max_probability_change": 0.2}, "needs ratios"),
        ({"loss_constant": 100.0}, "needs loss_aggregation=constant"),
    ],
)
def test_settings_that_cancel_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainerSettings(**settings)


def test_a_default_is_never_the_setting_that_is_refused() -> None:
    for loss in LOSSES:
        for more in ({}, {"ratio_band": (0.5, 1.9)}, {"clip_high": 3.0}):
            TrainerSettings(loss=loss, **more)
            # As read back from a file that has every value.
            TrainerSettings.model_validate(TrainerSettings(loss=loss, **more).model_dump())


def half(sequences: Sequence[TrainedSequence]) -> list[NDArray[np.float64]]:
    return [each.advantages / 2 for each in sequences]


def too_few(sequences: Sequence[TrainedSequence]) -> list[NDArray[np.float64]]:
    return []


def too_short(sequences: Sequence[TrainedSequence]) -> list[NDArray[np.float64]]:
    return [each.advantages[1:] for each in sequences]


def not_finite(sequences: Sequence[TrainedSequence]) -> list[NDArray[np.float64]]:
    return [each.advantages * np.nan for each in sequences]


NOT_A_FUNCTION = 3


def test_a_function_of_your_own_gives_the_weights() -> None:
    made = objective(f"{__name__}:half")
    assert made.weights([sequence([-1.0, -1.0], [-1.0, -1.0], [2.0, 9.0], [1, 0])])[0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too_few", "of 0 sequences instead of 1"),
        ("too_short", r"shape \(0,\) for 1 tokens"),
        ("not_finite", "non-finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        objective(f"{__name__}:{name}").weights([sequence([-1.0], [-1.0], [2.0])])


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a function from sequences"):
        objective(f"{__name__}:NOT_A_FUNCTION")


def test_ratio_settings_are_refused_where_a_function_computes_the_weights() -> None:
    with pytest.raises(ConfigError, match="ratio_band has no effect"):
        objective(f"{__name__}:half", ratio_band=(0.5, 5.0))

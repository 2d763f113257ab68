import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hermes_rl.extensions import OBJECTIVES
from hermes_rl.training.engines.protocol import Example
from hermes_rl.training.loss import (
    add_kl_penalty,
    importance_ratios,
    truncate_importance_weights,
)
from hermes_rl.training.objectives import CISPO, PPO, ImportanceSampling, Objective, get_objective, total_loss
from tests.training.plain_reference import loss_of

CLIP = (0.8, 1.2)
ALL = [get_objective(name) for name in OBJECTIVES.builtin]


class Position(NamedTuple):
    now: float
    then: float
    advantage: float
    mask: int


LOGPROBS = st.floats(-20, 0, width=32)
ADVANTAGES = st.floats(-5, 5, width=32)
POSITIONS = st.builds(Position, LOGPROBS, LOGPROBS, ADVANTAGES, st.just(1)) | st.builds(
    Position, LOGPROBS, st.just(0.0), st.just(0.0), st.just(0)
)
ROWS = st.lists(POSITIONS, min_size=1, max_size=8)


def example_of(row: list[Position]) -> tuple[Example, NDArray[np.float32]]:
    """The example, and the logprobs of its targets now."""
    columns = [np.array(column, np.float32) for column in zip(*row, strict=True)]
    now, then, advantages, mask = columns
    ids = np.arange(len(row) + 1)
    return Example(ids[:-1], ids[1:], then, advantages, mask), now


def of(
    now: list[float], then: list[float], advantages: list[float], mask: list[int]
) -> tuple[Example, NDArray[np.float32]]:
    return example_of([Position(*row) for row in zip(now, then, advantages, mask, strict=True)])


@given(st.lists(ROWS, min_size=1, max_size=3), st.sampled_from(ALL), st.floats(0.1, 1.0), st.floats(1.0, 5.0))
def test_a_loss_is_that_of_plain_loops(rows: list[list[Position]], loss: Objective, low: float, high: float) -> None:
    examples, logprobs = zip(*map(example_of, rows), strict=True)
    due = sum(loss_of(loss.name, row, low, high) for row in rows)
    assert total_loss(loss, examples, logprobs, (low, high)) == pytest.approx(due, rel=1e-5, abs=1e-5)


@given(ROWS, st.sampled_from(ALL))
def test_tokens_that_were_not_sampled_have_no_loss(row: list[Position], loss: Objective) -> None:
    example, now = example_of(row)
    losses = loss.token_losses(example, now, CLIP)
    assert not losses[example.mask == 0].any()


@pytest.mark.parametrize("loss", ALL)
def test_what_stands_in_place_of_an_unsampled_logprob_changes_nothing(loss: Objective) -> None:
    example, now = of([-1.0, -2.0], [0.0, -2.1], [0.0, 1.0], [0, 1])
    other = np.array([-np.inf, -2.0], np.float32)
    assert total_loss(loss, [example], [now], CLIP) == total_loss(loss, [example], [other], CLIP)


@given(ROWS, st.sampled_from([ImportanceSampling(), PPO()]))
def test_moving_with_the_advantages_lowers_the_loss(row: list[Position], loss: Objective) -> None:
    example, _ = example_of(row)
    better = (example.logprobs + 0.01 * np.sign(example.advantages)).astype(np.float32)
    still, moved = (total_loss(loss, [example], [now], CLIP) for now in (example.logprobs, better))
    assert moved <= still


def test_ppo_takes_no_gain_beyond_its_clip() -> None:
    example, now = of([math.log(0.9)], [math.log(0.3)], [2.0], [1])
    assert PPO().token_losses(example, now, CLIP) == pytest.approx([-1.2 * 2.0])


def test_ppo_takes_every_loss_beyond_its_clip() -> None:
    example, now = of([math.log(0.9)], [math.log(0.3)], [-2.0], [1])
    assert PPO().token_losses(example, now, CLIP) == pytest.approx([3.0 * 2.0])


def test_cispo_weighs_the_logprob_by_the_clipped_ratio() -> None:
    example, now = of([math.log(0.9)], [math.log(0.3)], [2.0], [1])
    assert CISPO().token_losses(example, now, CLIP) == pytest.approx([-1.2 * math.log(0.9) * 2.0])


def test_a_ratio_beyond_all_bounds_leaves_the_loss_finite() -> None:
    example, now = of([0.0, 0.0], [-1e30, -1e30], [1.0, 0.0], [1, 1])
    assert math.isfinite(total_loss(ImportanceSampling(), [example], [now], CLIP))


def test_truncated_weights_are_the_ratio_up_to_the_limit() -> None:
    example, now = of(
        [math.log(0.6), math.log(0.9), -1.0], [math.log(0.4), math.log(0.1), 0.0], [2.0, -2.0, 0.0], [1, 1, 0]
    )
    [made] = truncate_importance_weights([example], [now], 2.0)
    assert made.advantages == pytest.approx([2.0 * 1.5, -2.0 * 2.0, 0.0])


@given(ROWS, st.floats(0.5, 10))
def test_after_truncation_the_ratio_begins_at_one(row: list[Position], most: float) -> None:
    example, now = example_of(row)
    [made] = truncate_importance_weights([example], [now], most)
    assert importance_ratios(made, now).tolist() == [1.0] * len(row)


@given(ROWS)
def test_weights_below_the_limit_leave_the_loss_as_it_was(row: list[Position]) -> None:
    example, now = example_of(row)
    [made] = truncate_importance_weights([example], [now], 1e9)
    due = total_loss(ImportanceSampling(), [example], [now], CLIP)
    assert total_loss(ImportanceSampling(), [made], [now], CLIP) == pytest.approx(due, rel=1e-5)


@given(ROWS, st.floats(0.5, 10))
def test_truncation_keeps_what_was_not_sampled_at_zero(row: list[Position], most: float) -> None:
    example, now = example_of(row)
    [made] = truncate_importance_weights([example], [now], most)
    assert not made.logprobs[example.mask == 0].any()
    assert not made.advantages[example.mask == 0].any()


def test_a_token_far_beyond_what_float_holds_gets_the_largest_weight() -> None:
    example, now = of([0.0], [-1e30], [1.0], [1])
    [made] = truncate_importance_weights([example], [now], 2.0)
    assert made.advantages.tolist() == [2.0]


def test_a_penalty_is_the_coefficient_times_the_divergence_less_its_mean() -> None:
    one, reference = of([-1.0, -3.0, -9.0], [-0.5, -1.0, 0.0], [1.0, 1.0, 0.0], [1, 1, 0])
    two, other = of([-2.0], [-2.5], [-1.0], [1])
    apart = [-0.5 + 1.0, -1.0 + 3.0, -2.5 + 2.0]
    mean = sum(apart) / 3
    made = add_kl_penalty([one, two], [reference, other], 0.1)
    assert made[0].advantages == pytest.approx([1.0 + 0.1 * (mean - apart[0]), 1.0 + 0.1 * (mean - apart[1]), 0.0])
    assert made[1].advantages == pytest.approx([-1.0 + 0.1 * (mean - apart[2])])


@given(st.lists(ROWS, min_size=1, max_size=3), st.floats(0, 1))
def test_a_penalty_takes_nothing_from_the_batch_as_a_whole(rows: list[list[Position]], coefficient: float) -> None:
    examples, reference = zip(*map(example_of, rows), strict=True)
    made = add_kl_penalty(examples, reference, coefficient)
    before, after = (sum(float(one.advantages.sum(dtype=np.float64)) for one in some) for some in (examples, made))
    assert after == pytest.approx(before, abs=1e-3)


@given(ROWS)
def test_a_penalty_keeps_what_was_not_sampled_at_zero(row: list[Position]) -> None:
    example, reference = example_of(row)
    [made] = add_kl_penalty([example], [reference], 0.5)
    assert not made.advantages[example.mask == 0].any()


@given(ROWS)
def test_a_reference_that_agrees_changes_no_advantage(row: list[Position]) -> None:
    example, _ = example_of(row)
    [made] = add_kl_penalty([example], [example.logprobs], 0.5)
    assert made.advantages.tolist() == example.advantages.tolist()


def test_what_comes_in_is_never_changed() -> None:
    example, now = of([-1.0], [-2.0], [1.0], [1])
    add_kl_penalty([example], [now], 0.5)
    truncate_importance_weights([example], [now], 2.0)
    assert (example.logprobs.tolist(), example.advantages.tolist()) == ([-2.0], [1.0])


def test_columns_stay_of_the_types_an_engine_takes() -> None:
    example, now = of([-1.0], [-2.0], [1.0], [1])
    for made in (*add_kl_penalty([example], [now], 0.5), *truncate_importance_weights([example], [now], 2.0)):
        assert [made.logprobs.dtype.name, made.advantages.dtype.name] == ["float32", "float32"]

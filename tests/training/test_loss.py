"""The KL penalty by hand and by property."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.training.loss import add_kl_penalty
from tests.training.token_rows import ROWS, Position, example_of, of


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
    assert (example.logprobs.tolist(), example.advantages.tolist()) == ([-2.0], [1.0])


def test_columns_stay_of_the_types_an_engine_takes() -> None:
    example, now = of([-1.0], [-2.0], [1.0], [1])
    [made] = add_kl_penalty([example], [now], 0.5)
    assert [made.logprobs.dtype.name, made.advantages.dtype.name] == ["float32", "float32"]

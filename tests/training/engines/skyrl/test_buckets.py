"""Training passes by length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.training.engines.skyrl.inside.hermes_skyrl.buckets import LIMIT, SHORT, padded_length, passes


def padding(lengths: list[int], rows: int, unit: int = 1) -> float:
    return sum(each.tokens for each in passes(lengths, rows, unit)) / sum(lengths)


def log_normal(seed: int, count: int = 128, median: int = 1000, sigma: float = 0.8, longest: int = 9000) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(np.log(median), sigma, count)
    return [int(each) for each in np.clip(drawn, 1, longest)]


@pytest.mark.parametrize("seed", range(5))
def test_log_normal_lengths_are_padded_by_at_most_a_quarter(seed: int) -> None:
    lengths = log_normal(seed)
    whole = -(-len(lengths) // 8) * 8 * padded_length(max(lengths))
    assert whole / sum(lengths) > 4, "padding everything to the longest costs several times as much"
    assert padding(lengths, rows=8) <= LIMIT


@given(
    lengths=st.lists(st.integers(1, 20_000), min_size=1, max_size=60),
    rows=st.sampled_from([0, 1, 3, 4, 8]),
    unit=st.sampled_from([1, 2, 4]),
)
def test_every_sequence_is_in_one_pass_that_has_room_for_it(lengths: list[int], rows: int, unit: int) -> None:
    made = list(passes(lengths, rows, unit))
    assert sorted(index for each in made for index in each.indices) == list(range(len(lengths)))
    for each in made:
        assert each.rows % unit == 0
        assert len(each.indices) <= each.rows
        assert max(lengths[index] for index in each.indices) <= each.length


@given(lengths=st.lists(st.integers(SHORT + 1, 20_000), min_size=1, max_size=60), rows=st.sampled_from([0, 1, 3, 8]))
def test_the_limit_holds_for_any_lengths_when_a_pass_may_have_one_row(lengths: list[int], rows: int) -> None:
    assert padding(lengths, rows) <= LIMIT


def test_short_sequences_keep_the_rows_of_the_pass_that_is_compiled() -> None:
    [one] = passes([200, 30, 20], rows=8)
    assert (one.indices, one.rows, one.length) == ([0, 1, 2], 8, 256)


def test_a_long_tail_is_computed_with_fewer_rows() -> None:
    # 4 × 2,048 tokens for 2,048 + 3 × 300 would be 2.8 times as many.
    assert [(each.indices, each.rows, each.length) for each in passes([300, 2048, 300, 300], rows=4)] == [
        ([1], 1, 2048),
        ([0, 2], 2, 320),
        ([3], 1, 320),
    ]


@pytest.mark.parametrize(
    ("length", "coarse", "fine"), [(1, 32, 32), (33, 48, 40), (48, 48, 48), (65, 96, 80), (1000, 1024, 1024)]
)
def test_lengths_are_on_a_grid_of_binary_digits(length: int, coarse: int, fine: int) -> None:
    assert (padded_length(length), padded_length(length, 3)) == (coarse, fine)
